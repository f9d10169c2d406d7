package drover

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// listen waits for notifications: a job was enqueued while all slept, or a running one was cancelled. They are
// hints; without them the polls find the same.
func (s *Supervisor) listen(ctx context.Context) {
	link := link{store: s.client.store}
	defer link.close()
	for pause := time.Duration(0); ctx.Err() == nil; pause = min(max(2*pause, retryPause), maxRetryPause) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		conn, err := link.get(ctx)
		if err == nil {
			err = s.listenOn(ctx, conn, func() { pause = 0 })
			closeConn(conn)
		}
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "listening failed, polling goes on", slog.String("error", err.Error()))
		}
	}
}

// listenProbe is how often a silent connection is asked whether it still lives.
const listenProbe = 30 * time.Second

func (s *Supervisor) listenOn(ctx context.Context, conn *pgx.Conn, up func()) error {
	var channel string
	if err := conn.QueryRow(ctx, sqlListen).Scan(&channel); err != nil {
		return classify(err)
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	up()
	s.engine.wake() // what came before
	for {
		wait, cancel := context.WithTimeout(ctx, listenProbe)
		note, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && wait.Err() != nil && !conn.IsClosed():
			probe, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := conn.Ping(probe)
			cancel()
			if err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			s.heard(note.Payload)
		}
	}
}

// heard acts on a notification's text.
func (s *Supervisor) heard(payload string) {
	verb, what, _ := strings.Cut(payload, " ")
	switch verb {
	case "wake":
		for _, q := range s.queueStates() {
			if q.Name == what {
				s.engine.wake()
			}
		}
	case "cancel":
		s.inFlight.cancel(what)
	}
}
