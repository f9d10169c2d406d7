// Package browser has no code: it tests the pages of package ui in a real Chromium. It is a module of its
// own, and not in go.work. So drover's users, and drover's other tests, need neither Chromium, nor the library
// that drives it, nor axe-core, which finds barriers for people with disabilities. See docs/adr/0055.
//
//	.ci/run browser
package browser
