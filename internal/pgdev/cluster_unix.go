//go:build unix

package pgdev

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// cluster is a data directory with its postmaster. All files of the cluster are in dir, and the keeper removes dir.
type cluster struct {
	dir      string
	bin      string
	password string
	port     int
	settings map[string]string
	env      []string
	cred     *syscall.Credential // nil unless this process is root
	keeper   *keeper

	mu     sync.Mutex
	server *process // the postmaster; nil before the first start
	killed bool     // the last postmaster ended before it could clean up
}

// newCluster makes a cluster and starts it. The binaries are in bin, unless unpack is set. Then newCluster calls
// unpack, which writes the binaries into the cluster's directory and returns where they are.
func newCluster(ctx context.Context, o Options, bin string, unpack func(dir string) (string, error)) (*cluster, error) {
	cred, err := serverUser()
	if err != nil {
		return nil, err
	}
	c := &cluster{bin: bin, password: rand.Text(), settings: o.Settings, env: o.Env, cred: cred}
	dir := o.Dir
	if dir == "" || unpack != nil {
		dir = os.TempDir()
	}
	if c.keeper, err = startKeeper(dir, cred); err != nil {
		return nil, err
	}
	c.dir = c.keeper.dir
	if err := c.create(ctx, o, unpack); err != nil {
		return nil, errors.Join(err, c.close()) //nolint:contextcheck // the files are removed even if the context has ended
	}
	return c, nil
}

func (c *cluster) create(ctx context.Context, o Options, unpack func(dir string) (string, error)) error {
	if unpack != nil {
		bin, err := unpack(c.dir)
		if err != nil {
			return err
		}
		c.bin = bin
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := c.initdb(ctx); err != nil {
		return err
	}
	if err := c.startOnFreePort(ctx, o.port); err != nil {
		return err
	}
	return c.createDatabase(ctx)
}

// initdb makes the data directory. Its server asks TCP clients for a password. With the method "trust", every user of
// this machine could become the superuser, and run commands as the server's user. The socket needs no password, because
// other users cannot enter its directory.
func (c *cluster) initdb(ctx context.Context) error {
	password := c.path("password")
	if err := errors.Join(os.WriteFile(password, []byte(scramOf(c.password)), 0o600), c.give(password)); err != nil {
		return err
	}
	p, err := c.spawn("initdb", "--pgdata="+c.path("data"), "--username=drover", "--pwfile="+password,
		"--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("initdb: %w", ctx.Err())
	}
	if p.err != nil {
		return fmt.Errorf("initdb: %w\n%s", p.err, c.logTail())
	}
	return nil
}

// scramOf returns the password as the server stores it (RFC 5802 and RFC 7677, in the form of pg_authid). The server
// itself would hash the password 4,096 times, which protects passwords of people. A client would then do the same at
// each connect, which takes some 2 ms. The cluster's password has 130 random bits, so one round is enough.
func scramOf(password string) string {
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	salt := rand.Text()
	salted := mac([]byte(password), salt+"\x00\x00\x00\x01")
	stored := sha256.Sum256(mac(salted, "Client Key"))
	text := base64.StdEncoding.EncodeToString
	return "SCRAM-SHA-256$1:" + text([]byte(salt)) + "$" + text(stored[:]) + ":" + text(mac(salted, "Server Key"))
}

// startOnFreePort starts the server. If another process takes the chosen port before the server does, startOnFreePort
// tries another port, up to ten times.
func (c *cluster) startOnFreePort(ctx context.Context, choose func() (int, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for range 10 {
		if c.port, err = choose(); err != nil {
			return err
		}
		if err = c.start(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

var (
	errPortTaken = errors.New("the port is taken")
	errStillUsed = errors.New("the killed server's processes are not gone yet")
)

// start starts the server, and returns once it accepts connections. The caller holds mu.
func (c *cluster) start(ctx context.Context) error {
	if err := os.Truncate(c.path("log"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	args := append(flags(c.settings), "-D", c.path("data"), "-p", strconv.Itoa(c.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="+c.socketDir())
	p, err := c.spawn("postgres", args...)
	if err != nil {
		return err
	}
	c.server = p
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !c.ready(p) {
		select {
		case <-p.done:
			return c.startFailure(p)
		case <-ctx.Done():
			err := fmt.Errorf("postgres did not become ready: %w\n%s", ctx.Err(), c.logTail())
			c.stop(syscall.SIGQUIT)
			return err
		case <-tick.C:
		}
	}
	return nil
}

// socketDir returns the directory of the socket. It returns "", which means no socket, if the path is too long for the
// address of a socket.
func (c *cluster) socketDir() string {
	if len(c.dir) > 80 {
		return ""
	}
	return c.dir
}

// ready reports whether the server accepts connections. It reads the postmaster's status file, because a connection
// might reach another server.
func (c *cluster) ready(p *process) bool {
	pidFile, err := os.ReadFile(c.path("data", "postmaster.pid"))
	lines := strings.Split(string(pidFile), "\n")
	return err == nil && len(lines) > 7 &&
		lines[0] == strconv.Itoa(p.pid) && strings.TrimSpace(lines[7]) == "ready"
}

func (c *cluster) startFailure(p *process) error {
	tail := c.logTail()
	err := errors.Join(errors.New("postgres ended while starting"), p.err)
	switch {
	case strings.Contains(tail, "could not create any TCP/IP sockets"):
		err = errPortTaken
	case strings.Contains(tail, "still in use"):
		err = errStillUsed
	}
	return fmt.Errorf("%w\n%s", err, tail)
}

func (c *cluster) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.urlOf("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with this connection
	_, err = conn.Exec(ctx, `create database drover`)
	return err
}

// kill ends the server with SIGKILL, which leaves the data directory as after a crash.
func (c *cluster) kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop(syscall.SIGKILL)
	return nil
}

// restart stops the server if it runs, and starts it again. After a kill it first waits for the other processes of the
// killed server. They end when they notice that their postmaster is gone, and a new postmaster can start only after
// that.
func (c *cluster) restart(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keeper == nil {
		return fmt.Errorf("drover: restart: %w", os.ErrClosed)
	}
	c.stop(syscall.SIGINT)
	if err := c.startAgain(ctx); err != nil {
		return fmt.Errorf("drover: restart: %w", err)
	}
	return nil
}

func (c *cluster) startAgain(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.start(ctx)
		if !errors.Is(err, errStillUsed) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// close stops the server and lets the keeper remove the directory. After a kill it first starts the server again, because
// only a new postmaster removes the shared memory of a killed one.
func (c *cluster) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop(syscall.SIGINT)
	if c.killed {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_ = c.startAgain(ctx) // after an error, a few kilobytes of shared memory stay until the next boot
		c.stop(syscall.SIGINT)
	}
	err := c.keeper.close()
	c.keeper = nil
	return err
}

// stop ends the server with sig. If that takes too long, it sends a stronger signal. SIGINT means a fast shutdown, and
// SIGQUIT an immediate shutdown. The caller holds mu.
func (c *cluster) stop(sig syscall.Signal) {
	p := c.server
	if p == nil {
		return
	}
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL}
	for _, sig := range signals[slices.Index(signals, sig):] {
		p.signal(sig)
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
		}
	}
	var exit *exec.ExitError
	c.killed = !p.ended() || errors.As(p.err, &exit) && exit.ExitCode() == -1 // exit code -1: a signal ended the postmaster before it could clean up
	c.server = nil
}

func (c *cluster) url() string { return c.urlOf("drover") }

func (c *cluster) urlOf(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("drover", c.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)), Path: database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

func (c *cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// logTail returns the last lines of the log of initdb and the server.
func (c *cluster) logTail() string {
	text, err := os.ReadFile(c.path("log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// serverUser returns nil if the server can run as the user of this process. Postgres refuses to run as root, so for root
// serverUser returns another user.
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("root cannot run Postgres, and there is no user postgres or nobody to run it as")
}

// process is a child process that the keeper knows.
type process struct {
	pid  int
	done chan struct{} // closed once the process is gone
	err  error         // how it ended; set before done is closed
}

// spawn starts a binary in a new session. So Ctrl-C reaches only the Go program, which can drain before its database
// stops. spawn starts a shell, which sends its process id to the keeper, closes the keeper's pipe, and then becomes the
// binary. So the keeper knows every child before it sees the end of the pipe.
func (c *cluster) spawn(program string, args ...string) (*process, error) {
	const script = `echo $$ >&3; exec 3>&-; exec "$@"`
	log, err := os.OpenFile(c.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // this process writes nothing to the file; the child has another descriptor
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh", filepath.Join(c.bin, program)}, args...)...)
	cmd.Dir, cmd.Env = c.dir, append(serverEnv(), c.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{c.keeper.pipe}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: c.cred}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a shell in %s as %+v: %w", c.dir, c.cred, err)
	}
	p := &process{pid: cmd.Process.Pid, done: make(chan struct{})}
	keeper := c.keeper
	go func() { // this goroutine ends with the process, which close or start ends
		defer close(p.done)
		p.err = cmd.Wait()
		keeper.forget()
	}()
	return p, nil
}

// signal sends a signal to the process, and not to its process group, because a postmaster passes signals on to its
// children.
func (p *process) signal(sig syscall.Signal) {
	if !p.ended() {
		_ = syscall.Kill(p.pid, sig) // an error means that the process has ended
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// serverEnv returns the environment without variables that change the server's behaviour or the language of its messages.
func serverEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// keeper is a shell that makes a directory. When the Go program closes the pipe, or dies in any way, the shell ends the
// last process whose id the program has sent, and removes the directory.
type keeper struct {
	dir  string
	pipe *os.File // only this process holds this end; the other end is the shell's standard input
	cmd  *exec.Cmd
}

// keeperScript ignores the signals that a terminal or a process supervisor sends to all processes together. It first sends
// SIGQUIT, which is Postgres' immediate shutdown. After SIGKILL, a postmaster would leave shared memory behind. So SIGKILL
// follows only ten seconds later, to the process group.
const keeperScript = `
exec 2>&1
trap '' HUP INT TERM
umask 077
mkdir "$1" || exit
[ -z "$2" ] || chown "$2" "$1" || { rmdir "$1"; exit 1; }
echo made
exec >/dev/null 2>&1
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
	kill -QUIT "$pid"
	n=0
	while [ $n -lt 100 ] && kill -0 "$pid"; do sleep 0.1; n=$((n + 1)); done
	kill -KILL "-$pid"
fi
n=0
while [ $n -lt 50 ] && ! rm -rf "$1"; do sleep 0.1; n=$((n + 1)); done
[ ! -e "$1" ]
`

func startKeeper(parent string, cred *syscall.Credential) (*keeper, error) {
	dir := filepath.Join(tempDir(parent, cred), "drover-pg-"+strings.ToLower(rand.Text()[:10]))
	owner := ""
	if cred != nil {
		owner = fmt.Sprintf("%d:%d", cred.Uid, cred.Gid)
	}
	stdin, pipe, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close() //nolint:errcheck // the shell has a descriptor of its own
	k := &keeper{dir: dir, pipe: pipe, cmd: exec.Command("/bin/sh", "-c", keeperScript, "drover-pg-keeper", dir, owner)}
	k.cmd.Dir, k.cmd.Stdin = "/", stdin
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := k.cmd.StdoutPipe()
	if err == nil {
		err = k.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	answer, err := io.ReadAll(out)
	if text := strings.TrimSpace(string(answer)); err != nil || text != "made" {
		return nil, errors.Join(fmt.Errorf("making %s: %s", dir, text), err, k.close())
	}
	return k, nil
}

// tempDir returns dir, unless the server's user cannot enter it. That happens if this process is root and dir is
// private to root.
func tempDir(dir string, cred *syscall.Credential) string {
	for up := dir; cred != nil; up = filepath.Dir(up) {
		info, err := os.Stat(up)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return "/tmp"
		}
		if up == filepath.Dir(up) {
			break
		}
	}
	return dir
}

// forget makes the keeper forget a process that has ended, because another process may get the same id later.
func (k *keeper) forget() { _, _ = k.pipe.WriteString("\n") }

func (k *keeper) close() error {
	if err := errors.Join(k.pipe.Close(), k.cmd.Wait()); err != nil {
		return fmt.Errorf("drover: removing %s: %w", k.dir, err)
	}
	return nil
}
