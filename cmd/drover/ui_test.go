package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

const uiToken = "0123456789abcdef"

// startUI runs "drover ui" until the test ends, and returns its address.
func startUI(t *testing.T, sh *shell, flags ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	var stderr strings.Builder
	code := make(chan int, 1)
	go func() {
		a := &app{stdin: strings.NewReader(""), stdout: write, stderr: &stderr, getenv: func(string) string { return "" }}
		code <- a.run(ctx, append(append([]string{"ui", "--json", "--addr", "127.0.0.1:0"}, flags...), sh.flags...))
		write.Close() //nolint:errcheck // closing the end of a pipe cannot fail
	}()
	t.Cleanup(func() {
		cancel()
		if c := <-code; c != 0 {
			t.Errorf("exit code %d after Ctrl-C: %s", c, stderr.String())
		}
	})
	line, err := bufio.NewReader(read).ReadString('\n')
	var started struct{ URL string }
	if err != nil || json.Unmarshal([]byte(line), &started) != nil {
		t.Fatalf("%q, %v", line, err)
	}
	return started.URL
}

// ask gets a page, and returns its status and text.
func ask(t *testing.T, at, host, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Host = r.URL.Host; host != "" {
		r.Host = host
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing was written
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// The command serves the pages to this machine. It refuses other names, which another site could point here.
func TestUI(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	enqueue(t, client, charge{Order: 1}, nil)
	at := startUI(t, sh)
	if status, text := ask(t, at+"jobs", "", ""); status != http.StatusOK || !strings.Contains(text, "<strong>charge</strong>") {
		t.Errorf("status %d:\n%s", status, text)
	}
	_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(at, "http://"), "/"))
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"localhost:" + port: 200, "LOCALHOST": 200, "[::1]:" + port: 200, "127.0.0.2": 200, "evil.example": 421, "evil.example:" + port: 421,
		"127.0.0.1.evil.example": 421, "localhost.evil.example:" + port: 421, "10.0.0.1": 421, "0.0.0.0:" + port: 421,
	} {
		if status, text := ask(t, at, host, ""); status != want || want == 421 && strings.Contains(text, "Queues") {
			t.Errorf("Host %s: status %d, want %d", host, status, want)
		}
	}
}

// With --write, the pages change things in the name of --by or of the user. Without it, every form is refused.
func TestUIWrite(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags  []string
		status int
		cross  int // for a form of another site
		kept   string
	}{
		{nil, http.StatusMethodNotAllowed, http.StatusMethodNotAllowed, ""},
		{[]string{"--write"}, http.StatusOK, http.StatusForbidden, me.Username + " / cancelled: by hand"},
		{[]string{"--write", "--by", "ann", "--token", uiToken}, http.StatusOK, http.StatusForbidden, "ann / cancelled: by hand"},
	} {
		at := startUI(t, sh, c.flags...)
		id := enqueue(t, client, charge{Order: 1}, nil)
		_, text := ask(t, at+"job?id="+id, "", uiToken)
		if has := strings.Contains(text, ">Cancel this job</button>"); has != (c.kept != "") {
			t.Errorf("%q: the button is there: %t", c.flags, has)
		}
		for site, want := range map[string]int{"cross-site": c.cross, "same-origin": c.status} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at+"job?id="+id, strings.NewReader("do=cancel&why=by+hand"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Sec-Fetch-Site", site)
			r.Header.Set("Authorization", "Bearer "+uiToken)
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close() //nolint:errcheck // nothing was written
			if res.StatusCode != want {
				t.Errorf("%q, %s: status %d, want %d", c.flags, site, res.StatusCode, want)
			}
		}
		var got string
		if err := sh.pool.QueryRow(t.Context(), `select coalesce((select concat_ws(' / ', errors->-1->>'by', errors->-1->>'error')), '') from jobs where id = $1`, id).Scan(&got); err != nil || got != c.kept {
			t.Errorf("%q: kept %q, want %q", c.flags, got, c.kept)
		}
	}
}

// With a token, every page asks for it. All answers without the token are the same.
func TestUIToken(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(uiToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, given := range []string{uiToken, "@" + file} {
		at := startUI(t, sh, "--token", given)
		for _, page := range []string{"", "jobs", "style.css", "nowhere?token=" + uiToken} {
			for _, password := range []string{"", "0123456789abcdeF", uiToken + "0"} {
				if status, _ := ask(t, at+page, "", password); status != http.StatusUnauthorized {
					t.Errorf("%s with %q: status %d", page, password, status)
				}
			}
		}
		if status, _ := ask(t, at, "", uiToken); status != http.StatusOK {
			t.Errorf("with the token: status %d", status)
		}
	}
}

// A browser sends the token once, in a form, and gets a cookie that no script can read. Another site cannot send the form,
// and the token is in no URL.
func TestUIDoor(t *testing.T) {
	t.Parallel()
	h := newDoor(uiToken, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	send := func(method, token, site, cookie string) *http.Response {
		body := io.Reader(nil)
		if method == http.MethodPost {
			body = strings.NewReader("token=" + token)
		}
		r := httptest.NewRequestWithContext(t.Context(), method, "http://jobs.example/job?id=01X", body)
		r.Header.Set("Accept", "text/html")
		r.Header.Set("Sec-Fetch-Site", site)
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: doorCookie, Value: cookie}) //nolint:gosec // a request has no attributes
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result() //nolint:bodyclose // the body of a recorder needs no Close
	}
	asked := send(http.MethodGet, "", "none", "")
	page, err := io.ReadAll(asked.Body)
	if err != nil || asked.StatusCode != http.StatusUnauthorized || !strings.Contains(string(page), `type="password"`) || strings.Contains(string(page), "%MESSAGE%") {
		t.Errorf("%d, %v:\n%s", asked.StatusCode, err, page)
	}
	for name, no := range map[string]*http.Response{
		"a wrong token": send(http.MethodPost, "0123456789abcdeF", "same-origin", ""), "another site": send(http.MethodPost, uiToken, "cross-site", ""),
		"a wrong cookie": send(http.MethodGet, "", "none", "x"), "the token as cookie": send(http.MethodGet, "", "none", uiToken),
	} {
		if no.StatusCode != http.StatusUnauthorized || len(no.Cookies()) > 0 {
			t.Errorf("%s: %d, %v", name, no.StatusCode, no.Cookies())
		}
	}
	in := send(http.MethodPost, uiToken, "same-origin", "")
	if in.StatusCode != http.StatusSeeOther || in.Header.Get("Location") != "?id=01X" || len(in.Cookies()) != 1 {
		t.Fatalf("%d, %v", in.StatusCode, in.Header)
	}
	if c := in.Cookies()[0]; !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || strings.Contains(c.Value, uiToken) {
		t.Errorf("%v", c)
	}
	if again := send(http.MethodGet, "", "none", in.Cookies()[0].Value); again.StatusCode != http.StatusNoContent {
		t.Errorf("with the cookie: %d", again.StatusCode)
	}
	if other := newDoor(uiToken, nil); other.session == h.session {
		t.Error("the cookie outlives the command")
	}
}

// With a token, the pages are served under every name, because a proxy passes on its own name.
func TestUITokenUnderAnotherName(t *testing.T) {
	t.Parallel()
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, ip := range []net.IP{net.IPv4zero, net.IPv4(127, 0, 0, 1)} {
		h := guardUI(next, &net.TCPAddr{IP: ip, Port: 8700}, uiToken)
		for token, want := range map[string]int{uiToken: 204, "": 401} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://jobs.example/", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s, token %q: status %d, want %d", ip, token, w.Code, want)
			}
		}
	}
}

func TestUIErrors(t *testing.T) {
	t.Parallel()
	nowhere := &shell{}
	there := newShell(t)
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // it accepted nothing
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sh    *shell
		args  []string
		code  int
		texts []string
	}{
		{nowhere, []string{"--addr", "0.0.0.0:0"}, 2, []string{"others can reach --addr 0.0.0.0:0", "--token", "127.0.0.1"}},
		{nowhere, []string{"--addr", ":0"}, 2, []string{"others can reach"}},
		{nowhere, []string{"--addr", "[::]:0"}, 2, []string{"others can reach"}},
		{nowhere, []string{"--addr", "8700"}, 2, []string{`--addr "8700" is not host:port`}},
		{nowhere, []string{"--addr", ""}, 2, []string{"is not host:port"}},
		{nowhere, []string{"--addr", taken.Addr().String()}, 1, []string{"listen on --addr", "in use"}},
		{nowhere, []string{"--addr", "127.0.0.1:0", "--token", ""}, 2, []string{"--token is empty"}},
		{nowhere, []string{"--addr", "127.0.0.1:0", "--token", "short"}, 2, []string{"5 characters", "at least 16"}},
		{nowhere, []string{"--addr", "127.0.0.1:0", "--token", "@" + empty}, 2, []string{"0 characters"}},
		{nowhere, []string{"--addr", "127.0.0.1:0", "--token", "@/nowhere"}, 2, []string{"--token: ", "/nowhere"}},
		{nowhere, []string{"--write", "--by", " "}, 2, []string{"--by: is empty"}},
		{nowhere, []string{"--write", "--by", strings.Repeat("w", 129)}, 2, []string{"--write needs a name of 1 to 128 bytes"}},
		{nowhere, []string{"--by", "ann"}, 2, []string{"--by is for --write"}},
		{nowhere, []string{"jobs"}, 2, []string{"unknown command \"jobs\""}},
		{nowhere, []string{"--addr", "127.0.0.1:0"}, 2, []string{"--url"}},
		{there, []string{"--addr", "127.0.0.1:0"}, 1, []string{"not migrated", "drover migrate up"}},
	} {
		if o := c.sh.run(t, append([]string{"ui"}, c.args...)...).ends(t, c.code, c.texts...); o.stdout != "" {
			t.Errorf("drover %s: %q on stdout", o.line, o.stdout)
		}
	}
	nowhere.run(t, "help", "ui").ok(t).says(t, "--token", "--addr", "--write", "--by", "127.0.0.1:8700", "docs/ui.md")
}
