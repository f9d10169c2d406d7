// Package browser has no code: it tests the pages of package ui in a real Chromium. It is a module of its
// own, and not in go.work, so that neither drover's users nor its other tests need what it needs: Chromium,
// the library that drives it, and axe-core, which finds what keeps people out. See docs/adr/0047.
//
//	.ci/run browser
package browser
