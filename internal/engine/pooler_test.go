package engine_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/migrations"
)

// transactionPooler gives every client's transactions to the one session that it has, as PgBouncer does in transaction
// mode. It knows nothing of prepared statements.
type transactionPooler struct {
	mu     sync.Mutex // held by the client that has the session
	server *pgconn.HijackedConn
}

// dial makes a client's connection.
func (p *transactionPooler) dial(context.Context, string, string) (net.Conn, error) {
	client, here := net.Pipe()
	go p.serve(here) // ends with the client's connection
	return client, nil
}

func (p *transactionPooler) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the client has gone
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return
	}
	client.Send(&pgproto3.AuthenticationOk{})
	for name, value := range p.server.ParameterStatuses {
		client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte("1234")})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	has := false
	for client.Flush() == nil {
		message, err := client.Receive()
		if _, bye := message.(*pgproto3.Terminate); bye || err != nil {
			return
		}
		if !has {
			p.mu.Lock()
			has = true
		}
		p.server.Frontend.Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync, *pgproto3.CopyDone, *pgproto3.CopyFail:
			if has = p.answer(client) != 'I'; !has {
				p.mu.Unlock()
			}
		}
	}
}

// answer passes on what the server says, and returns what becomes of the transaction.
func (p *transactionPooler) answer(client *pgproto3.Backend) (txStatus byte) {
	if p.server.Frontend.Flush() != nil {
		return 'I'
	}
	for {
		message, err := p.server.Frontend.Receive()
		if err != nil {
			return 'I'
		}
		client.Send(message)
		switch message := message.(type) {
		case *pgproto3.ReadyForQuery:
			return message.TxStatus
		case *pgproto3.CopyInResponse: // the rows come now
			return 'T'
		}
	}
}

func newTransactionPooler(t *testing.T, db *testDB) *transactionPooler {
	t.Helper()
	conn, err := pgconn.ConnectConfig(t.Context(), &db.Config().ConnConfig.Config)
	if err != nil {
		t.Fatal(err)
	}
	server, err := conn.Hijack()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Conn.Close() })
	return &transactionPooler{server: server}
}

// behind a transaction pooler a mode of the driver works, or is refused at the start with what to do; a direct connection
// takes them all.
func TestModesBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for mode, works := range map[pgx.QueryExecMode]bool{
		pgx.QueryExecModeCacheStatement: false, pgx.QueryExecModeDescribeExec: false,
		pgx.QueryExecModeCacheDescribe: true, pgx.QueryExecModeExec: true, pgx.QueryExecModeSimpleProtocol: true,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pooler := newTransactionPooler(t, db)
			direct := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			pooled := db.via(t, drover.Config{}, func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode, c.ConnConfig.DialFunc = mode, pooler.dial
			})
			if err := direct.client.Check(t.Context()); err != nil {
				t.Errorf("direct: %v", err)
			}
			sup, err := pooled.client.NewSupervisor(drover.SupervisorConfig{
				Queues: []drover.Queue{{}}, DisableNotify: true, Workers: handling(func(context.Context, *drover.Job, int) error { return nil }),
			})
			if err != nil {
				t.Fatal(err)
			}
			if works {
				if err := pooled.client.Check(t.Context()); err != nil {
					t.Errorf("Check = %v", err)
				}
				for range 3 { // by COPY, on whichever session
					if _, err := pooled.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{Args: job{1}}, {Args: job{2}}}); err != nil {
						t.Errorf("EnqueueMany = %v", err)
					}
				}
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // for a Run that begins all the same
			defer cancel()
			for what, err := range map[string]error{"Check": pooled.client.Check(ctx), "Run": sup.Run(ctx)} {
				if !errors.Is(err, drover.ErrPooler) || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
					t.Errorf("%s = %v, want ErrPooler", what, err)
				}
			}
			if n := value[int](t, db, `select count(*) from drover_supervisors`); n > 0 {
				t.Errorf("%d supervisors are registered", n)
			}
		})
	}
}

// L6: a migration locks by session. Behind a transaction pooler it is refused before anything is done.
func TestMigrateBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		pooler := newTransactionPooler(t, db)
		pooled := db.via(t, drover.Config{}, func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode, c.ConnConfig.DialFunc = mode, pooler.dial
		})
		_, listErr := migrations.List(t.Context(), pooled.Pool)
		for what, err := range map[string]error{"Up": migrations.Up(t.Context(), pooled.Pool), "Down": migrations.Down(t.Context(), pooled.Pool), "Jobs": listErr, "in a schema": migrations.Schema("any").Up(t.Context(), pooled.Pool)} {
			if !errors.Is(err, migrations.ErrPooler) {
				t.Errorf("%s, %v = %v", what, mode, err)
			}
		}
		if n := value[int](t, db, `select count(*) from pg_locks where locktype = 'advisory' and pid = $1`, pooler.server.PID); n > 0 {
			t.Errorf("%d locks are left behind", n)
		}
	}
}

// The error of a producer that did not ask Check names the remedy too.
func TestEnqueueBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	pooler := newTransactionPooler(t, db)
	for n, want := range []error{nil, drover.ErrPooler} { // the second meets the statement of the first
		pooled := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.DialFunc = 1, pooler.dial })
		if _, err := pooled.client.Enqueue(t.Context(), letter{}, nil); !errors.Is(err, want) {
			t.Errorf("producer %d: %v, want %v", n+1, err, want)
		}
	}
}

// A hook that clears the session between two users of a connection takes the driver's prepared statements, as a pooler would.
func TestAHookThatClearsTheSession(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, clear := range []string{`discard all`, `deallocate all`} {
		cleared := db.via(t, drover.Config{}, func(c *pgxpool.Config) {
			c.MaxConns = 1
			c.AfterRelease = func(conn *pgx.Conn) bool {
				_, err := conn.Exec(context.Background(), clear)
				return err == nil
			}
		})
		refused := func(what string, do func() error) {
			t.Helper()
			var err error
			for range 3 { // the first has nothing prepared yet
				if err = do(); err != nil {
					break
				}
			}
			if err == nil || !strings.Contains(err.Error(), "discard all") || !strings.Contains(err.Error(), "pooler") {
				t.Errorf("%s: %s = %v, want both causes", clear, what, err)
			}
		}
		refused("Check", func() error { return cleared.client.Check(t.Context()) })
		refused("Enqueue", func() error { _, err := cleared.client.Enqueue(t.Context(), letter{}, nil); return err })
		refused("Job", func() error {
			_, err := cleared.client.Job(t.Context(), ulid.Make().String())
			if errors.Is(err, drover.ErrNotFound) {
				err = nil
			}
			return err
		})
		refused("migrations.Up", func() error { return migrations.Up(t.Context(), cleared.Pool) })
	}
}
