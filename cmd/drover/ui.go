package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover/ui"
)

// uiOptions are the flags of "drover ui".
type uiOptions struct {
	addr, token, by string
	write           bool
}

func newUICommand(a *app) *cobra.Command {
	var o uiOptions
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve web pages about queues, jobs and failures",
		Long: `Serve web pages about queues, jobs and failures, until Ctrl-C. Without --write the pages change nothing.
With --write they have buttons to redrive, cancel, pause and so on, and everybody who can open the pages
can press them. Each change is recorded with the name of --by, and with the reason that the user types.

The pages show args and error texts, so by default only this machine can reach them. An --addr that
others can reach needs a --token: the pages then ask for it, and programs send it as
"Authorization: Bearer TOKEN". The command does not encrypt its answers. Put a proxy with TLS in
front of it.

To have the pages in your own application, behind its own log-in, see docs/ui.md.`,
		Example: `  drover ui
  drover ui --write
  drover ui --addr 0.0.0.0:8700 --token @/run/secrets/drover-ui`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("token") && o.token == "" {
				return usagef("--token is empty: give a value, or leave the flag out")
			}
			if cmd.Flags().Changed("by") && !o.write {
				return usagef("--by is for --write: without it the pages change nothing")
			}
			if err := checkBy(cmd, &o.by); err != nil {
				return err
			}
			return a.ui(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.addr, "addr", "127.0.0.1:8700", "listen on this `host:port`; port 0 picks a free port")
	f.StringVar(&o.token, "token", "", "ask for this `password`, at least 16 characters; @FILE reads it from a file")
	f.BoolVar(&o.write, "write", false, "let the pages change jobs, pauses, failures, schedules and redrives")
	f.StringVar(&o.by, "by", "", "`name` that is recorded with changes (default: your user name)")
	return cmd
}

func (a *app) ui(ctx context.Context, o uiOptions) error {
	const mostName = 128 // how many bytes drover.Audit.By may have
	if o.write && (o.by == "" || len(o.by) > mostName) {
		return usagef("--write needs a name of 1 to %d bytes to record: give one with --by", mostName)
	}
	token, err := readToken(o.token)
	if err != nil {
		return err
	}
	listener, err := listenUI(ctx, o.addr, token)
	if err != nil {
		return err
	}
	defer listener.Close() //nolint:errcheck // Serve closes it first, unless the database cannot be opened
	return a.reading(ctx, func(ctx context.Context, s *session) error {
		opts := ui.Options{Logger: a.logger()}
		if o.write {
			opts.Authorize = func(*http.Request, ui.Action) (string, bool) { return o.by, true }
		}
		handler := ui.Handler(s.client, opts)
		return a.serveUI(ctx, listener, guardUI(handler, listener.Addr(), token))
	})
}

const leastToken = 16 // in characters; nobody can guess a token of this length, so the server need not count wrong tokens

func readToken(given string) (string, error) {
	name, isFile := strings.CutPrefix(given, "@")
	if isFile {
		raw, err := os.ReadFile(name)
		if err != nil {
			return "", usagef("--token: %w", err)
		}
		given = strings.TrimSpace(string(raw))
	}
	if (given != "" || isFile) && len(given) < leastToken {
		return "", usagef("--token has %d characters, and needs at least %d: openssl rand -hex 16 makes one", len(given), leastToken)
	}
	return given, nil
}

// listenUI refuses an address that other machines can reach, unless there is a token.
func listenUI(ctx context.Context, addr, token string) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, usagef("--addr %q is not host:port, such as 127.0.0.1:8700", shorten(addr, 40))
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on --addr: %w", err)
	}
	if token == "" && !loopback(listener.Addr()) {
		listener.Close() //nolint:errcheck // the listener has not accepted a connection
		return nil, usagef("others can reach --addr %s, and the pages show args and errors: give a --token, or listen on 127.0.0.1", addr)
	}
	return listener, nil
}

func loopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// guardUI protects the pages. If there is a token, it serves only requests with the token or its cookie. A browser
// sends the cookie only to the host name from which it got the cookie. Without a token, the server listens only on a
// loopback address, and guardUI serves only requests whose Host header names this machine. Otherwise another site could
// let its own name resolve to 127.0.0.1, and its scripts could read the pages.
func guardUI(next http.Handler, addr net.Addr, token string) http.Handler {
	if token != "" {
		return newDoor(token, next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !localHost(r.Host) {
			http.Error(w, "This address is not served under that name: use http://"+addr.String()+"/.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// localHost reports whether a Host header names this machine, as a loopback address or as localhost. No other site can have
// one of these names.
func localHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// serveUI serves until ctx is done. Then it waits up to five seconds for running requests.
func (a *app) serveUI(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }() // Shutdown ends this goroutine
	at := "http://" + listener.Addr().String() + "/"
	if a.json {
		if err := a.printJSON(map[string]string{"url": at}); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(a.stdout, "drover's pages are at "+at+"  Ctrl-C ends this")
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}
