// Everything works without this file. With it, a page that somebody looks at stays up to date, times are shown in the
// reader's time zone, and an id is copied by a click.
"use strict";
(() => {
  const second = 1000;
  const poll = 15 * second; // where there are no events
  const share = 20; // after a read, the page waits at least this many times as long as the read took

  let source = null;
  let timer = 0;
  let broken = 0; // streams that ended before an event came
  let rest = 0; // the page does not read itself before this time
  let reading = false;

  // A person who types, selects or chooses something does not lose it.
  function busy() {
    const main = document.getElementById("main");
    const picked = document.getSelection();
    if (picked && !picked.isCollapsed && main.contains(picked.anchorNode)) return true;
    for (const field of main.querySelectorAll("input, select, textarea")) {
      if (field === document.activeElement) return true;
      if (field.type === "hidden") continue;
      if (changed(field)) return true;
    }
    return false;
  }

  function changed(field) {
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (!field.options) return field.value !== field.defaultValue;
    return field.selectedIndex !== Math.max(0, [...field.options].findIndex((o) => o.defaultSelected));
  }

  async function read() {
    if (reading || document.hidden || stopped() || Date.now() < rest || busy()) return;
    reading = true;
    const began = Date.now();
    try {
      const answer = await fetch(location.href, { redirect: "error", cache: "no-store", headers: { "Drover-Live": source ? "again" : "poll" } });
      if (answer.status === 204) return; // too many pages are open: this page has its turn later
      const text = await answer.text();
      if (source) rest = Date.now() + share * (Date.now() - began); // not if the page polls, because this time includes the wait for its turn
      if (!answer.ok) throw new Error("the answer was " + answer.status);
      if (busy()) return;
      show(new DOMParser().parseFromString(text, "text/html"));
      note("");
    } catch (error) {
      note("This page is not up to date: it could not be read again (" + error.message + "). It tries again.");
    } finally {
      reading = false;
    }
  }

  // show replaces the old content by the new content. What was open stays open, and the focus stays where it was.
  function show(next) {
    for (const name of ["main", "foot"]) {
      const old = document.getElementById(name);
      const fresh = next.getElementById(name);
      if (!old || !fresh) { location.reload(); return; }
      dress(fresh);
      if (old.innerHTML === fresh.innerHTML) continue;
      const open = [...old.querySelectorAll("details")].map((d) => d.open);
      const places = [...old.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
      const reach = "a[href], button, summary, .scroll";
      const at = [...old.querySelectorAll(reach)].indexOf(document.activeElement);
      old.replaceChildren(...fresh.childNodes);
      old.querySelectorAll("details").forEach((d, i) => { if (open[i]) d.open = true; });
      old.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = places[i] || 0; });
      const again = old.querySelectorAll(reach)[at];
      if (at >= 0 && again) again.focus({ preventScroll: true });
    }
    document.title = next.title;
  }

  // Somebody who reads at leisure, or with a screen reader, can stop the updates. The choice holds in this tab.
  const kept = "drover.stopped";
  function stopped() {
    try { return sessionStorage.getItem(kept) === "yes"; } catch { return false; }
  }

  function offerToStop() {
    const button = document.createElement("button");
    button.type = "button";
    button.id = "stop";
    const label = () => { button.textContent = stopped() ? "Update this page again" : "Stop updating"; };
    button.addEventListener("click", () => {
      try { sessionStorage.setItem(kept, stopped() ? "no" : "yes"); } catch { return; }
      label();
      note(stopped() ? "This page is not updated any more." : "");
      listen();
      read();
    });
    label();
    if (stopped()) note("This page is not updated any more.");
    document.getElementById("live").after(button);
  }

  function note(text) {
    const place = document.getElementById("live");
    if (place && place.textContent !== text) place.textContent = text;
  }

  // dress turns exact times into the reader's zone: in the text, or in the title of a relative time. It adds a button to
  // each id.
  function dress(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      const local = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
      if (time.textContent === time.title) time.textContent = local;
      time.title = local + " · " + time.dateTime;
    }
    for (const id of root.querySelectorAll("code.id")) {
      if (!navigator.clipboard) return; // there is a clipboard only over TLS or on localhost
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy " + id.textContent);
      id.after(" ", button);
    }
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.parentElement.querySelector("code.id").textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
  });

  // A page that nobody sees costs nothing, not even one of the few connections that a browser has for a site.
  function listen() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
    if (document.hidden || stopped()) return;
    if (!window.EventSource || broken > 2) {
      timer = setTimeout(async () => { await read(); listen(); }, poll);
      return;
    }
    let heard = false;
    source = new EventSource("live");
    source.onmessage = () => { heard = true; broken = 0; read(); };
    source.onerror = () => {
      if (!heard) broken++;
      source.close();
      source = null;
      timer = setTimeout(listen, 3 * second);
    };
  }

  dress(document);
  if (document.body.hasAttribute("data-live")) {
    document.addEventListener("visibilitychange", () => { if (!document.hidden) read(); listen(); });
    window.addEventListener("pagehide", () => { if (source) source.close(); });
    window.addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
    offerToStop();
    listen();
  }
})();
