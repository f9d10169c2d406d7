package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// fleet is many supervisors that wake each other, on the clock of synctest. It runs the real
// claimers and keepers. Their connections lead to the fleet, which stands in for the server: it has
// jobs, transactions, advisory locks and notifications, and knows the statements of waking.
// wake_test.go tests that a server answers these statements in the same way.
type fleet struct {
	t       *testing.T
	mu      sync.Mutex
	jobs    []*fleetJob
	locks   map[int64]*wire
	wires   []*wire
	xid     uint64
	open    map[uint64]bool // transactions
	notes   int             // that were sent
	members []*member
	cancel  context.CancelFunc
	all     sync.WaitGroup
}

// fleetJob is a job of the queue q. Its floor is compared with due.
type fleetJob struct {
	id      string
	due     time.Time
	lasts   time.Duration
	owner   *member // that has claimed it
	started time.Time
}

// member is a supervisor of the fleet.
type member struct {
	*Engine
	fleet  *fleet
	claims int
	stall  time.Duration // how much longer its claims take
}

// wire is a connection of a member.
type wire struct {
	*member
	listens bool
	mail    []string
	rings   chan struct{}
	closed  bool
}

const (
	fleetTrip    = 500 * time.Microsecond // to the server, and as long back
	fleetLookout = 100                    // the keys of the locks of the queue q
	fleetOnCall  = 200
	fleetPoll    = 5 * time.Second
	fleetRest    = 20 * time.Second
)

// pass waits so long, on the clock of synctest.
func pass(d time.Duration) { <-time.After(d) }

// inFleet runs f next to so many supervisors that have fallen asleep, each with so many slots.
func inFleet(t *testing.T, size, slots int, f func(f *fleet)) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // it never connects
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	synctest.Test(t, func(t *testing.T) {
		fl := &fleet{t: t, locks: map[int64]*wire{}, open: map[uint64]bool{}, xid: 100}
		var ctx context.Context
		ctx, fl.cancel = context.WithCancel(t.Context())
		for i := range size {
			fl.join(ctx, &pg.Pool{Pool: pool}, fmt.Sprintf("s%02d", i), size, slots)
			pass(fleetPoll / time.Duration(size)) // otherwise all supervisors would poll at the same time
		}
		pass(RestAfter)
		fl.forget()
		f(fl)
		fl.cancel()
		fl.all.Wait()
	})
}

func (f *fleet) join(ctx context.Context, pool *pg.Pool, id string, size, slots int) {
	e := New(Config{
		Handler: fleetHandler{fleet: f}, Log: slog.New(slog.DiscardHandler), Kinds: []store.KindPolicy{{Kind: "k"}},
		Queues: []Queue{{QueuePolicy: store.QueuePolicy{Name: "q", Slots: slots}}},
		Lease:  time.Hour, PollInterval: fleetPoll, RestInterval: fleetRest,
	}, pool)
	m, now := &member{Engine: e, fleet: f}, time.Now()
	for _, link := range []*store.Line{&e.Claimer.Link, &e.Keeper.Link} {
		w := &wire{member: m, rings: make(chan struct{}, 1)}
		link.Conn, link.Until = w, now.Add(24*time.Hour)
		f.wires = append(f.wires, w)
	}
	e.Keeper.Base = ctx
	e.beaten.Store(&now)
	e.Lease.Store(NewLease(ctx, id))
	e.crews.Store(&map[string]store.Crew{"q": {Lookout: fleetLookout, OnCall: fleetOnCall}})
	others := []string{}
	for i := range size {
		if other := fmt.Sprintf("s%02d", i); other != id {
			others = append(others, other)
		}
	}
	e.sharers.Store(&others)
	e.Claimer.Near.Share(size)
	f.members = append(f.members, m)
	f.all.Go(func() { e.Claimer.run(ctx, ctx) })
	f.all.Go(func() { m.keep(ctx) })
	for range slots {
		f.all.Go(m.work)
	}
}

// keep replaces keeper.run. It sends no heartbeats, but it takes free slots, as heartbeats do.
func (m *member) keep(ctx context.Context) {
	k := m.Keeper
	k.Listens() //nolint:contextcheck // as in run
	for beat := m.Now(); ctx.Err() == nil; {
		k.wait(ctx, k.OnCall.next(k.askAt(beat), k.hears()))
		k.TendCalls(ctx)
		k.AskUnheard(ctx)
		if k.Interrupted() || !m.Now().Before(beat) {
			k.OnCall.goOn(ctx, k.Link.Current(), k.hears())
			beat = m.Now().Add(fleetPoll)
		}
	}
}

// work is one slot.
func (m *member) work() {
	for q := m.QueueStates()[0]; ; {
		r, ok := q.Buffer.Take()
		if !ok {
			return
		}
		began, job := time.Now(), r.Task.(*fleetJob)
		m.fleet.mu.Lock()
		job.started = began
		m.fleet.mu.Unlock()
		pass(job.lasts)
		m.Unsettled.Remove(r)
		q.Ran(time.Since(began))
		r.Finish()
	}
}

// fleetHandler makes the runs.
type fleetHandler struct {
	Handler
	fleet *fleet
}

// NewRun implements Handler.
func (h fleetHandler) NewRun(j *store.Job, _ any, _ time.Duration) *Run {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	i := slices.IndexFunc(h.fleet.jobs, func(o *fleetJob) bool { return o.id == j.ID })
	return &Run{Task: h.fleet.jobs[i], Queue: j.Queue, Kind: j.Kind, MaxAttempts: 2}
}

// enqueue stores a job that is due now, and asks for a lookout behind the commit.
func (f *fleet) enqueue(lasts time.Duration) *fleetJob {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.xid++
	j := f.add(time.Now(), lasts)
	f.deliver(f.wake(nil, time.Now(), 0))
	return j
}

// later stores jobs that are due at a later time, and wakes no supervisor.
func (f *fleet) later(due time.Time, lasts time.Duration, n int) (jobs []*fleetJob) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range n {
		jobs = append(jobs, f.add(due, lasts))
	}
	return jobs
}

func (f *fleet) add(due time.Time, lasts time.Duration) *fleetJob {
	f.jobs = append(f.jobs, &fleetJob{id: fmt.Sprintf("j%05d", len(f.jobs)), due: due.Round(time.Microsecond), lasts: lasts})
	return f.jobs[len(f.jobs)-1]
}

// begin acts as EnqueueTx, and commit ends its transaction.
func (f *fleet) begin() (commit func() *fleetJob) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.xid++
	id, due := f.xid, time.Now()
	f.open[id] = true
	notes := f.wake(nil, due, 0)
	return func() *fleetJob {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.open, id)
		j := f.add(due, 0)
		f.deliver(notes)
		return j
	}
}

// wake acts as drover_wake. The caller passes on the notifications that it returns.
func (f *fleet) wake(by *wire, due time.Time, passes int64) (notes []string) {
	if f.locks[fleetLookout] != nil {
		return nil
	}
	var slots []int64
	for i := range int64(store.CallSlots) {
		key := fleetOnCall + (i+time.Now().Unix())%store.CallSlots
		if key != passes && f.locks[key] != nil && len(slots) < 2 {
			slots = append(slots, key)
		}
	}
	what := fmt.Sprintf("%d %d q", due.UnixMicro(), max(0, time.Until(due).Microseconds()))
	switch {
	case len(slots) > 0 && by == nil:
		return []string{fmt.Sprintf("wake %d %d %s", slots[0], slots[len(slots)-1], what)}
	case len(slots) > 0:
		return []string{fmt.Sprintf("pass %d %d %s", slots[0], slots[len(slots)-1], what)}
	case by != nil:
		return []string{"all " + what}
	}
	return nil
}

func (f *fleet) deliver(notes []string) {
	f.notes += len(notes)
	for _, w := range f.wires {
		if w.listens && len(notes) > 0 {
			w.mail = append(w.mail, notes...)
			select {
			case w.rings <- struct{}{}:
			default:
			}
		}
	}
}

// forget sets all counts to 0.
func (f *fleet) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notes = 0
	for _, m := range f.members {
		m.claims = 0
	}
}

// onCall returns the supervisors that the next enqueue notifies.
func (f *fleet) onCall() (on []*member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range int64(store.CallSlots) {
		if w := f.locks[fleetOnCall+(i+time.Now().Unix())%store.CallSlots]; w != nil && len(on) < 2 {
			on = append(on, w.member)
		}
	}
	return on
}

// stall makes the claims of these supervisors so much longer.
func (f *fleet) stall(members []*member, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range members {
		m.stall = d
	}
}

// owner returns the supervisor that has claimed a job.
func (f *fleet) owner(j *fleetJob) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return j.owner
}

// lookout reports whether there is a lookout.
func (f *fleet) lookout() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.locks[fleetLookout] != nil
}

// counted returns how many claims and notifications there were.
func (f *fleet) counted() (claims, notes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		claims += m.claims
	}
	return claims, f.notes
}

// listening returns how many supervisors listen.
func (f *fleet) listening() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.wires {
		if w.listens {
			n++
		}
	}
	return n
}

// startsWithin checks how long jobs have waited since they were due.
func (f *fleet) startsWithin(most time.Duration, jobs ...*fleetJob) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	late, never, last := 0, 0, time.Duration(0)
	for _, j := range jobs {
		switch waited := j.started.Sub(j.due); {
		case j.started.IsZero():
			never++
		case waited > most:
			late, last = late+1, max(last, waited)
		}
	}
	if late+never > 0 {
		f.t.Errorf("of %d jobs %d have not started, and %d later than %v, as late as %v", len(jobs), never, late, most, last)
	}
}

// awake returns how many claimers are awake.
func (f *fleet) awake() (n int) {
	for _, m := range f.members {
		if !m.alarm.asleep.Load() {
			n++
		}
	}
	return n
}

// --- what a connection sends

// SendBatch implements pg.Conn.
func (w *wire) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	trip, f := fleetTrip, w.fleet
	claims := slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.SQL == store.SQLClaim })
	f.mu.Lock()
	if claims {
		w.claims++
		trip += w.stall
	}
	f.mu.Unlock()
	pass(trip)
	defer pass(fleetTrip)
	f.mu.Lock()
	defer f.mu.Unlock()
	var replies answers
	if ctx.Err() != nil {
		w.closed = true
		replies.err = ctx.Err()
		return &replies
	}
	var notes []string
	for _, q := range b.QueuedQueries {
		replies.rows = append(replies.rows, w.answer(q.SQL, q.Arguments, &notes))
	}
	f.deliver(notes)
	return &replies
}

// answer carries out a statement. An unknown statement returns no rows.
func (w *wire) answer(sql string, args []any, notes *[]string) [][]any {
	f := w.fleet
	take := func(key int64) bool {
		if holder := f.locks[key]; holder != nil && holder != w {
			return false
		}
		f.locks[key] = w
		return true
	}
	switch {
	case sql == store.SQLClaimPlan:
		f.xid++
		oldest := f.xid
		for id := range f.open {
			oldest = min(oldest, id)
		}
		return [][]any{{nil, nil, nil, nil, 0.0, time.Now(), int64(oldest), int64(f.xid)}} //nolint:gosec // few
	case sql == store.SQLClaim:
		return f.claim(w.member, args)
	case strings.Contains(sql, "pg_advisory_unlock_all"):
		for key, holder := range f.locks {
			if holder == w {
				delete(f.locks, key)
			}
		}
	case strings.Contains(sql, "drover_wake"):
		told := f.wake(w, time.UnixMicro(args[1].(int64)), args[2].(int64))
		*notes = append(*notes, told...)
		return [][]any{{len(told) > 0 && told[0][0] == 'p'}}
	case strings.Contains(sql, "generate_series(0, $2 - 1)"): // it goes on call
		for slot := int64(fleetOnCall); slot < fleetOnCall+store.CallSlots; slot++ {
			if take(slot) {
				return [][]any{{int64(fleetOnCall), slot}}
			}
		}
		return [][]any{{int64(fleetOnCall), nil}}
	case strings.Contains(sql, "pg_try_advisory_lock(k)"):
		if take(fleetLookout) {
			return [][]any{{int64(fleetLookout)}}
		}
	case strings.Contains(sql, "pg_advisory_unlock(k)"):
		for _, key := range args[0].([]int64) {
			if f.locks[key] == w {
				delete(f.locks, key)
			}
		}
	case strings.HasPrefix(sql, "select coalesce("): // the stamp of the limits
		return [][]any{{""}}
	}
	return nil
}

// claim acts as store.SQLClaim, with its lanes and floors.
func (f *fleet) claim(by *member, args []any) (rows [][]any) {
	now, room := time.Now(), args[4].([]int32)[0]
	rooms, groups, lanes := slices.Clone(args[6].([]int32)), args[7].([]int32), args[8].([]int16)
	ats, ids := args[9].([]time.Time), args[10].([]string)
	lane := slices.Index(lanes, floors.TierFresh+5)
	group := groups[lane] - 1
	floor := floors.Floor{At: ats[lane], ID: ids[lane]}
	next := any(nil)
	for _, j := range f.jobs {
		switch {
		case j.owner != nil:
		case j.due.After(now):
			if in := j.due.Sub(now).Seconds(); next == nil || in < next.(float64) {
				next = in
			}
		case room > 0 && rooms[group] > 0 && floor.Before(floors.Floor{At: j.due, ID: j.id}):
			room, rooms[group], j.owner = room-1, rooms[group]-1, by
			rows = append(rows, []any{now, j.id, "k", "q", int64(lanes[lane]), "{}", int64(1), int64(1), j.due, nil, nil})
		}
	}
	if rows == nil {
		return [][]any{{now, nil, nil, nil, nil, nil, nil, nil, nil, nil, next}}
	}
	if args[12].(bool) {
		for i := range rows {
			rows[i][10] = next
		}
	}
	return rows
}

// Exec implements pg.Conn.
func (w *wire) Exec(_ context.Context, sql string, _ ...any) (tag pgconn.CommandTag, err error) {
	pass(2 * fleetTrip)
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	w.listens = strings.HasPrefix(sql, "listen")
	return tag, nil
}

// Query implements pg.Conn.
func (w *wire) Query(context.Context, string, ...any) (pgx.Rows, error) { return &rows{}, nil }

// QueryRow implements pg.Conn.
func (w *wire) QueryRow(context.Context, string, ...any) pgx.Row {
	return &rows{list: [][]any{{"channel"}}, at: 1}
}

// WaitForNotification implements pg.Conn.
func (w *wire) WaitForNotification(ctx context.Context) (*pgconn.Notification, error) {
	for {
		w.fleet.mu.Lock()
		if len(w.mail) > 0 {
			text := w.mail[0]
			w.mail = w.mail[1:]
			w.fleet.mu.Unlock()
			return &pgconn.Notification{Payload: text}, nil
		}
		w.fleet.mu.Unlock()
		select {
		case <-w.rings:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Config implements pg.Conn.
func (w *wire) Config() *pgx.ConnConfig { return nil }

// PgConn implements pg.Conn.
func (w *wire) PgConn() *pgconn.PgConn { return nil }

// IsClosed implements pg.Conn.
func (w *wire) IsClosed() bool {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	return w.closed
}

// Close implements pg.Conn. The locks of the connection end with it.
func (w *wire) Close(context.Context) error {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	w.closed, w.listens = true, false
	for key, holder := range w.fleet.locks {
		if holder == w {
			delete(w.fleet.locks, key)
		}
	}
	return nil
}

// answers are the results of a batch.
type answers struct {
	pgx.BatchResults
	rows [][][]any
	at   int
	err  error
}

// Exec implements pgx.BatchResults.
func (a *answers) Exec() (tag pgconn.CommandTag, err error) {
	a.at++
	return tag, a.err
}

// Query implements pgx.BatchResults.
func (a *answers) Query() (pgx.Rows, error) {
	if a.err != nil {
		return nil, a.err
	}
	a.at++
	return &rows{list: a.rows[a.at-1]}, nil
}

// Close implements pgx.BatchResults.
func (a *answers) Close() error { return a.err }

// rows are the rows of a result.
type rows struct {
	pgx.Rows
	list [][]any
	at   int
}

// Next implements pgx.Rows.
func (r *rows) Next() bool { r.at++; return r.at <= len(r.list) }

// Err implements pgx.Rows.
func (*rows) Err() error { return nil }

// Close implements pgx.Rows.
func (*rows) Close() {}

// Scan implements pgx.Rows. It goes through the texts that a server sends.
func (r *rows) Scan(dest ...any) error {
	m := pgtype.NewMap()
	var errs []error
	for i, dst := range dest {
		oid, text := uint32(pgtype.TextOID), []byte(nil)
		switch value := r.list[r.at-1][i].(type) {
		case string:
			text = []byte(value)
		case bool:
			oid, text = pgtype.BoolOID, []byte(strconv.FormatBool(value)[:1])
		case int64:
			oid, text = pgtype.Int8OID, strconv.AppendInt(nil, value, 10)
		case float64:
			oid, text = pgtype.Float8OID, strconv.AppendFloat(nil, value, 'g', -1, 64)
		case time.Time:
			oid, text = pgtype.TimestamptzOID, []byte(value.UTC().Format("2006-01-02 15:04:05.999999Z07:00"))
		case nil:
			switch dst.(type) {
			case nil:
				continue
			case *pgtype.Int2, *pgtype.Int4, **int64:
				oid = pgtype.Int8OID
			case *pgtype.Timestamptz:
				oid = pgtype.TimestamptzOID
			case *pgtype.Float8:
				oid = pgtype.Float8OID
			case *[]byte:
			}
			if text, isText := dst.(pgtype.BytesScanner); isText {
				errs = append(errs, text.ScanBytes(nil))
				continue
			}
		}
		if scanner, isText := dst.(pgtype.BytesScanner); isText {
			errs = append(errs, scanner.ScanBytes(text))
			continue
		}
		errs = append(errs, m.Scan(oid, pgtype.TextFormatCode, text, dst))
	}
	return errors.Join(errs...)
}
