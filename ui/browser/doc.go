// Package browser has only tests. They test the pages of package ui in a real Chromium. The package is a module of its
// own, and not in go.work. So drover's users and drover's other tests do not need Chromium, the library that drives
// Chromium, or axe-core, which finds barriers for people with disabilities. See docs/adr/0055.
//
//	.ci/run browser
package browser
