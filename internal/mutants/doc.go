// Command mutants puts one deliberate bug after another into the library. The list names tests for each bug, and one of
// them must fail: the code must compile, and an assertion of the test must report the fault. A bug that no test notices
// is a hole in the tests.
//
//	go run ./internal/mutants               all bugs, after a run without a bug, which must pass
//	go run ./internal/mutants -only NAME    one bug, or several separated by commas
//	go run ./internal/mutants -list         the list of the bugs
//
// Nothing in the tree is changed: the go command reads the changed file instead of the original (-overlay). The
// report is a Markdown table on the standard output.
package main

// The files of this package:
//
//   - main.go: the command line; puts a bug into a file by an overlay
//   - judge.go: runs tests, and decides whether one of them has caught the bug
//   - list.go: all bugs: for each a file, the text old, the text new, and tests. Its lines are copies of lines of
//     other files
