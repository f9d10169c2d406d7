package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
)

// misbehave does the harm that the field Do of the job names, if any. It panics or does worse in the first run of the
// job. If Do means the end of the process, it ends the process in every run.
func (t *task) misbehave(run int) error {
	switch t.Do {
	case "exit":
		os.Exit(1)
	case "overflow":
		debug.SetMaxStack(1 << 20)
		fmt.Fprintln(os.Stderr, overflow(1))
	case "race":
		race()
	case "hog":
		return hog()
	}
	if run > 1 {
		return nil
	}
	switch t.Do {
	case "panic":
		panic("boom")
	case "panic error":
		panic(errors.New("boom"))
	case "panic nil map":
		counts := map[string]map[string]int{}
		counts["none"]["boom"] = 1
	case "goexit":
		runtime.Goexit()
	case "fail":
		return errors.New("boom")
	case "dirty":
		return errors.New("NUL \x00, invalid \xff\xfe, long " + strings.Repeat("boom ", 1<<20))
	}
	return nil
}

func overflow(n int) int {
	if n == 0 {
		return 0
	}
	return overflow(n+1) + n
}

// race causes a fatal error of the Go runtime, from which no program can recover.
func race() {
	shared := map[int]int{}
	for range 8 {
		go func() { // this goroutine ends with the process
			for n := 0; ; n++ {
				shared[n%8] = n
			}
		}()
	}
	select {}
}

// hog allocates more memory than the process may have.
func hog() error {
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		return err
	}
	for kept := [][]byte{}; ; {
		kept = append(kept, make([]byte, 64<<20))
	}
}
