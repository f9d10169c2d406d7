// Command ci answers two questions for .ci/run and .ci/nightly: which tests are slow or only run at night, and whether
// the results of a test run are good.
//
//	go run ./internal/ci slow               the slow tests: a pattern for -run, then the packages of these tests
//	go run ./internal/ci nightly            the tests that only .ci/nightly runs: on each line a name, its package, and why
//	go run ./internal/ci judge LOG          fails if the results in LOG are not good; prints a line FLAKY for each
//	                                        test that failed and then passed
//	go run ./internal/ci whole QUICK SLOW   fails unless each test of the workspace has passed in one of the two, or is one of
//	                                        at most ten for the night
//
// A log holds the output of go test -json, as gotestsum writes it with -jsonfile. A test that was run again has a second result
// in the log.
package main

// The files of this package:
//
//   - main.go: the command line: slow, nightly, judge, whole
//   - results.go: reads the log of a test run (go test -json), and judges it
//   - source.go: inventory: the tests in the source, and the tier of each
