// Command house keeps the layout of the packages in view, and changes it.
//
//	go run ./internal/house knots [DIR]   how far the files of a package depend on each other in circles
//	go run ./internal/house move PLAN     moves definitions of the root package to other packages
//	go run ./internal/house rename PLAN   renames exported names of the root package, in the Go files of the workspace
//	                                      that are built here; comments, strings and documents are left for a person
//
// A plan has one step per line; the rest of a line after # is a comment:
//
//	outcome.go -> internal/engine/end.go              a whole file
//	sparingly -> internal/engine/log.go               one definition, with its doc comment; a type brings its methods
//	rename sparingly.may Allow                          a name of its own, in place of the capital that an export needs
//	known ErrReadOnly internal/pg                     stays, and what goes uses what has the same name there
//
// move qualifies names, exports what another package uses, writes the imports, and rewrites the deliberate bugs of
// internal/mutants that quote a moved line. It writes nothing if a moved definition needs a definition of the root, or if a
// local name hides a package. It leaves prose alone: comments and documents that name a moved file are for a person.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 1 && len(args) <= 2 && args[0] == "knots":
		dir := "."
		if len(args) == 2 {
			dir = args[1]
		}
		p, err := load(dir, none)
		if err != nil {
			return err
		}
		files, arrows, knots := p.knots()
		fmt.Printf("%d files, %d arrows, %d knots\n", files, arrows, len(knots))
		for _, knot := range knots {
			fmt.Printf("%d: %s\n", len(knot), strings.Join(knot, " "))
		}
		return nil
	case len(args) == 2 && args[0] == "move":
		return move(".", args[1])
	case len(args) == 2 && args[0] == "rename":
		return rename(".", args[1])
	}
	return fmt.Errorf("use: house knots [DIR], house move PLAN or house rename PLAN")
}
