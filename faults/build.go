package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// build describes how the program of a scenario's processes differs from this program. The zero value means this program.
type build struct {
	tag   string
	race  bool // built with the race detector
	clock bool // its wall clock is wrong by the duration in clockVar
}

func (sc *scenario) build(full bool) build {
	return build{tag: sc.tag, race: full && !sc.racy, clock: sc.clock}
}

// builds builds each program once.
type builds struct {
	dir, own string

	mu   sync.Mutex
	made map[build]func() (string, error)
}

func newBuilds(dir string) (*builds, error) {
	own, err := os.Executable()
	return &builds{dir: dir, own: own, made: map[build]func() (string, error){}}, err
}

// prepare builds the programs of the scenarios while the first scenarios run. In the full tier it builds the programs
// before the first scenarios, because the compiler then also builds the whole standard library, and the first scenarios
// would have only a part of the machine.
func (s *suite) prepare(ctx context.Context, chosen []scenario) {
	build := func() {
		for i := range chosen {
			_, _ = s.builds.get(ctx, chosen[i].build(s.full)) // the scenario will get the same error
		}
	}
	if s.full {
		build()
		return
	}
	go build() // this goroutine ends with the last build, or with ctx
}

// get builds the program if it is not built yet, and returns its file name.
func (b *builds) get(ctx context.Context, what build) (string, error) {
	if what == (build{}) {
		return b.own, nil
	}
	b.mu.Lock()
	program := b.made[what]
	if program == nil {
		program = sync.OnceValues(func() (string, error) { return b.make(ctx, what) })
		b.made[what] = program
	}
	b.mu.Unlock()
	return program()
}

func (b *builds) make(ctx context.Context, what build) (string, error) {
	name, args := "program", []string{"build"}
	if what.tag != "" {
		name, args = name+"-"+what.tag, append(args, "-tags", what.tag)
	}
	if what.race {
		name, args = name+"-race", append(args, "-race")
	}
	if what.clock {
		overlay, err := b.wrongClock(ctx)
		if err != nil {
			return "", err
		}
		name, args = name+"-clock", append(args, "-overlay", overlay)
	}
	name = filepath.Join(b.dir, name)
	_, err := run(ctx, "", "go", append(args, "-o", name, "github.com/drover-queue/drover/faults")...)
	return name, err
}

// run runs a program and returns its output. The default of dir is the directory of this process.
func run(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), err
}

// clockVar is the environment variable with the error of a process' wall clock, such as "-1h".
const clockVar = "DROVER_CLOCK"

// wrongClock makes an overlay file for the compiler. The overlay replaces time.Now of the standard library by a function
// that adds the error of clockVar, in every package of the process. The monotonic clock stays right, as on a real host
// with a wrong clock. A preloaded library could not change the time, because Go programs do not ask libc for the time:
// they read it from a page of the kernel.
func (b *builds) wrongClock(ctx context.Context) (overlay string, err error) {
	root, err := run(ctx, "", "go", "env", "GOROOT")
	if err != nil {
		return "", err
	}
	original := filepath.Join(root, "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	const read, imports = "\tsec, nsec, mono := runtimeNow()\n", "import (\n"
	if strings.Count(string(text), read) == 0 {
		return "", fmt.Errorf("%s reads the clock in another way than this suite knows", original)
	}
	wrong := strings.NewReplacer(imports, imports+"\t\"syscall\"\n", read, read+"\tsec += clockError\n").Replace(string(text)) + `
var clockError = func() int64 {
	text, _ := syscall.Getenv("` + clockVar + `")
	d, _ := ParseDuration(text)
	return int64(d / Second)
}()
`
	changed, overlay := filepath.Join(b.dir, "time.go"), filepath.Join(b.dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	return overlay, errors.Join(err, os.WriteFile(changed, []byte(wrong), 0o600), os.WriteFile(overlay, list, 0o600))
}
