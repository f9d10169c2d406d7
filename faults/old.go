//go:build ignore

// Of this and the files of workers and producers S-6 makes a program over an older version of the library, which need not
// have what the rest of the suite uses.
package main

import (
	"fmt"
	"os"
)

func main() {
	role := runProducer
	if os.Args[1] == "worker" {
		role = runWorker
	}
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}
