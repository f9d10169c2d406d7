import { readFileSync } from "node:fs";

// versionOf is what a package says of itself.
export function versionOf(name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
}

// fail ends the process with the error's stack, from wherever it is called.
export function fail(error) {
  setImmediate(() => {
    throw error;
  });
}

// batches cuts n jobs into arrays of at most size of them.
export function* batches(n, size, job) {
  for (let from = 0; from < n; from += size) {
    yield Array.from({ length: Math.min(size, n - from) }, (_, i) => job(from + i));
  }
}

// tally resolves its promise when count is called for the n-th time.
export function tally(n) {
  const t = { n: 0 };
  t.full = new Promise((resolve) => {
    t.count = () => ++t.n === n && resolve();
  });
  return t;
}
