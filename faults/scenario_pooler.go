package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover/migrations"
)

func poolerScenarios() []scenario {
	return []scenario{{
		id: "N-5", what: "PgBouncer in transaction mode, every exec mode of pgx; rounds are jobs of each", quick: 200, full: 2000, minutes: 3,
		deathless: true, unmeasured: true, before: startPooler, run: poolInEveryMode,
		change: func(l *load, full bool) {
			l.Deafened, l.Jobs, l.Rate = true, 100, 100
			if full {
				l.Jobs = 1000
			}
		},
	}}
}

// pooler is a PgBouncer in front of the server.
type pooler struct {
	url   string // the URL with the present exec mode
	cmd   *exec.Cmd
	stdin io.Closer
}

// execModes are the exec modes of pgx. The first of them works behind every pooler.
func execModes() []string {
	return []string{"exec", "cache_describe", "simple_protocol", "cache_statement", "describe_exec"}
}

const pgbouncerConfig = `
[databases]
%[1]s = host=%[2]s port=%[3]s user=%[4]s password=%[5]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[6]d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 10
log_connections = 0
log_disconnections = 0
`

// startPooler migrates without the pooler, and then puts the pooler in front of the server.
func startPooler(ctx context.Context, w *world) error {
	if err := migrations.Up(ctx, w.pool); err != nil {
		return err
	}
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // where Debian installs it, which may not be in PATH
	}
	u, err := url.Parse(w.url)
	if err != nil {
		return err
	}
	password, _ := u.User.Password()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := free.Addr().(*net.TCPAddr).Port
	config, name := filepath.Join(w.dir, "pgbouncer.ini"), strings.Trim(u.Path, "/")
	text := fmt.Sprintf(pgbouncerConfig, name, u.Hostname(), u.Port(), u.User.Username(), password, port)
	if err := errors.Join(free.Close(), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		return err
	}
	// The shell ends when its input ends, as a child does. PgBouncer 1.18 may end by itself ("bad client state") after a
	// cancel request. Then the shell starts it again, as the init of a machine does.
	const forever = `(trap 'kill $p; exit' TERM; while :; do "$@" & p=$!; wait $p; sleep 0.2; done) & cat; kill $!; wait`
	command := []string{"-c", forever, "sh", program, config}
	if os.Geteuid() == 0 {
		command = slices.Insert(command, 4, "-u", "nobody")
	}
	p := &pooler{cmd: exec.Command("sh", command...)}
	p.cmd.Stderr = w.childErrors()
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("pgbouncer: %w", err)
	}
	w.pooler = p
	u.Host = net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
	p.url = u.String()
	w.setMode(execModes()[0])
	return until(ctx, "PgBouncer is up", 10*time.Second, func() (bool, error) {
		conn, err := net.Dial("tcp4", u.Host)
		if err == nil {
			err = conn.Close()
		}
		return err == nil, err
	})
}

func (p *pooler) close() error {
	err := p.stdin.Close()
	_ = p.cmd.Wait() // the error is that a signal has ended the process
	return err
}

// setMode sets the exec mode of the processes that start from now on.
func (w *world) setMode(mode string) {
	before, _, _ := strings.Cut(w.pooler.url, "&default_query_exec_mode=")
	w.pooler.url = before + "&default_query_exec_mode=" + mode
}

// poolInEveryMode runs this number of jobs in each exec mode. The processes in the first mode are running already.
func poolInEveryMode(ctx context.Context, w *world, jobs int) error {
	passed := 0
	for i, mode := range execModes() {
		err := w.inject("mode "+mode, "", func() error {
			if i > 0 {
				refused, err := w.changeMode(ctx, mode)
				if refused || err != nil {
					return err
				}
			}
			w.awaitProducers(ctx)
			passed += jobs
			return w.eventually(ctx, fmt.Sprintf("%d jobs have run in mode %s", jobs, mode), 2*time.Minute,
				`select count(*) = $1 from jobs where finalized_at is not null`, passed)
		})
		w.faults[len(w.faults)-1].Count = jobs
		if err != nil {
			return err
		}
	}
	if passed < 3*jobs { // three of the modes keep no statement in a session, so they have to work
		return fmt.Errorf("no more than %d jobs could run", passed)
	}
	return nil
}

// remedy is the text that a worker's refusal must have.
const remedy = "default_query_exec_mode=exec"

// changeMode stops all processes and starts them in another mode, unless the first worker refuses and names the remedy.
func (w *world) changeMode(ctx context.Context, mode string) (refused bool, err error) {
	for _, c := range slices.Clone(w.workers) {
		err = errors.Join(err, w.stopInTime(c, w.load.Drain+10*time.Second))
	}
	w.setMode(mode)
	first, failed := w.startWorker(w.load)
	err = errors.Join(err, failed, until(ctx, "a worker is up in mode "+mode+", or refuses", 30*time.Second, func() (bool, error) {
		if !first.alive() {
			return true, nil
		}
		return w.isSo(ctx, `select count(*) = 1 from drover_supervisors where lost_at is null`)
	}))
	if err != nil {
		return false, err
	}
	if !first.alive() {
		w.gone(first)
		said, err := os.ReadFile(filepath.Join(w.dir, "stderr"))
		line := string(said[max(0, bytes.LastIndexByte(bytes.TrimSpace(said), '\n')):])
		if !strings.Contains(line, remedy) || !strings.Contains(line, first.name+" ") {
			err = errors.Join(err, fmt.Errorf("in mode %s %s ended without a remedy: %s", mode, first.name, line))
		}
		return true, err
	}
	for range w.load.Workers - 1 {
		if _, err := w.startWorker(w.load); err != nil {
			return false, err
		}
	}
	w.producers = nil // the producers have ended
	return false, w.startProducers()
}
