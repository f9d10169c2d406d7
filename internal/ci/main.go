package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "ci:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "slow":
		return printSlow(out)
	case len(args) == 1 && args[0] == "nightly":
		return printNightly(out)
	case len(args) == 2 && args[0] == "judge":
		r, err := read(args[1])
		return errors.Join(r.judge(out), err)
	case len(args) == 3 && args[0] == "whole":
		return whole(out, args[1], args[2])
	}
	return fmt.Errorf("want slow, nightly, judge LOG, or whole QUICK SLOW, not %q", strings.Join(args, " "))
}

func printSlow(out io.Writer) error {
	tests, err := inventory("work")
	if err != nil {
		return err
	}
	names, packages := slowOf(tests)
	if len(names) == 0 {
		return fmt.Errorf("no test calls slow(t)")
	}
	_, err = fmt.Fprintf(out, "^(%s)$\n%s\n", strings.Join(names, "|"), strings.Join(packages, " "))
	return err
}

func printNightly(out io.Writer) error {
	tests, err := inventory("work")
	if err != nil {
		return err
	}
	for _, t := range tests {
		if t.nightly != "" {
			fmt.Fprintln(out, t.name, t.pkg, t.nightly)
		}
	}
	return nil
}

// slowOf returns the names of the slow tests, and their packages. The packages with the most slow tests come first.
// Because go test begins the packages in this order, no large package is left to run alone at the end.
func slowOf(tests []test) (names, packages []string) {
	count := map[string]int{}
	for _, t := range tests {
		if t.slow {
			names = append(names, t.name)
			packages = append(packages, t.pkg)
			count[t.pkg]++
		}
	}
	packages = sorted(packages)
	slices.SortStableFunc(packages, func(a, b string) int { return count[b] - count[a] })
	return sorted(names), packages
}

// mostNightly is how many tests may be left to .ci/nightly.
const mostNightly = 10

// The function whole checks that each test passed in the quick tier or in the slow tier. A few tests for the night are
// left out.
func whole(out io.Writer, quickLog, slowLog string) error {
	tests, err := inventory("work")
	if err != nil {
		return err
	}
	quick, err := read(quickLog)
	if err != nil {
		return err
	}
	slow, err := read(slowLog)
	if err != nil {
		return err
	}
	all := len(tests)
	tests = slices.DeleteFunc(tests, func(t test) bool { return t.nightly != "" })
	missing, inQuick, inSlow := missing(tests, quick, slow)
	fmt.Fprintf(out, "%d tests: %d in the quick tier, %d in the slow tier, %d for the night\n", all, inQuick, inSlow, all-len(tests))
	if n := all - len(tests); n > mostNightly {
		return fmt.Errorf("%d tests are for the night, at most %d may be", n, mostNightly)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d tests passed in neither tier (a slow one calls slow(t) in its own body):\n%s", len(missing), strings.Join(missing, "\n"))
	}
	return nil
}

// The function missing returns the tests that passed in neither log. It also returns how many tests passed in the first
// log, and how many only in the second one. It checks subtests too: if the quick tier skips a subtest, it must pass in
// the slow tier.
func missing(tests []test, quick, slow *results) (missing []string, inQuick, inSlow int) {
	for _, t := range tests {
		id := testID{t.pkg, t.name}
		switch {
		case quick.ended(id) == "pass":
			inQuick++
		case slow.ended(id) == "pass":
			inSlow++
		default:
			missing = append(missing, id.String())
		}
	}
	for _, id := range quick.order {
		if strings.Contains(id.name, "/") && quick.ended(id) == "skip" && slow.ended(id) != "pass" {
			missing = append(missing, id.String())
		}
	}
	return sorted(missing), inQuick, inSlow
}
