package drover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// 64 producers race, single, in bulk and in transactions, some of which roll back, as a whole
// or to a savepoint: one row, and every receipt names it.
func TestManyProducersOfOneUniqueJob(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	ways := db.ways(t)
	for round := range 10 {
		var wg sync.WaitGroup
		go_ := make(chan struct{})
		told := make([]Receipt, 64)
		for i := range told {
			wg.Go(func() {
				<-go_
				opts := &EnqueueOpts{Unique: &Unique{By: []string{"n"}, Until: []UniqueUntil{UntilEnded, UntilStarted, UntilPassed(time.Hour)}[round%3]}}
				switch i % 16 {
				case 7: // it is stored, or found, by a transaction that rolls back
					db.rolledBack(t, parcel{N: round, To: fmt.Sprint(i)}, opts)
					return
				case 15: // and here what follows a savepoint is rolled back, and the rest committed
					db.rolledBackInPart(t, parcel{N: round, To: fmt.Sprint(i)}, opts)
					return
				}
				r, err := ways[i%len(ways)].enqueue(t.Context(), parcel{N: round, To: fmt.Sprint(i)}, opts)
				if err != nil {
					t.Errorf("%s: %v", ways[i%len(ways)].name, err)
				}
				told[i] = r
			})
		}
		close(go_)
		wg.Wait()
		id := value[string](t, db, `select min(id) from jobs where args->>'n' = $1::text having count(*) = 1`, fmt.Sprint(round))
		stored := 0
		for i, r := range told {
			if i%8 == 7 {
				continue
			}
			if r.ID != id {
				t.Errorf("round %d: producer %d was told of %s, the row is %s", round, i, r.ID, id)
			}
			if !r.Existing {
				stored++
			}
		}
		if stored != 1 {
			t.Errorf("round %d: %d receipts say that it was stored", round, stored)
		}
	}
}

// rolledBack enqueues a job in a transaction that comes to nothing.
func (db *testDB) rolledBack(t testing.TB, args Args, opts *EnqueueOpts) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err == nil {
		_, err = db.client.EnqueueTx(t.Context(), tx, args, opts)
		err = errors.Join(err, tx.Rollback(t.Context()))
	}
	if err != nil {
		t.Error(err)
	}
}

// rolledBackInPart enqueues a job behind a savepoint, and goes back to that.
func (db *testDB) rolledBackInPart(t testing.TB, args Args, opts *EnqueueOpts) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		part, err := tx.Begin(t.Context())
		if err == nil {
			_, err = db.client.EnqueueTx(t.Context(), part, args, opts)
			err = errors.Join(err, part.Rollback(t.Context()))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Producers race with sessions that end, redrive and delete the jobs that they store: there is
// never more than one, and no receipt names a job that was not there.
func TestUniqueJobsThatComeAndGo(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	// The table itself could not show afterwards which jobs there ever were.
	db.exec(t, `create table seen (id text primary key)`)
	db.exec(t, `create function seen() returns trigger language plpgsql as $$ begin insert into seen values (new.id); return null; end $$`)
	db.exec(t, `create trigger seen after insert on jobs for each row execute function seen()`)
	ways := db.ways(t)
	var over atomic.Bool
	var wg, others sync.WaitGroup
	for _, verb := range []string{
		`update jobs set state = 'completed', finalized_at = now(), claimed_by = null where id = any(array(select id from jobs where finalized_at is null and random() < 0.7 order by id for update skip locked))`,
		`delete from jobs where id = any(array(select id from jobs where finalized_at is not null and random() < 0.2 order by id for update skip locked))`,
		`update jobs set state = 'cancelled', finalized_at = now() where id = any(array(select id from jobs where finalized_at is null and random() < 0.2 order by id for update skip locked))`,
	} {
		others.Go(func() {
			for !over.Load() {
				if _, err := db.Exec(t.Context(), verb); err != nil {
					t.Error(err)
				}
			}
		})
	}
	others.Go(func() {
		for !over.Load() {
			ids := db.idsOf(t, `select id from jobs where state in ('cancelled') limit 5`)
			for _, id := range ids {
				if err := db.client.RedriveJob(t.Context(), id, nil, Audit{}); err != nil && !errors.Is(err, ErrState) && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
			}
			if n := value[int](t, db, `select coalesce(max(n), 0) from (select count(*) as n from jobs where finalized_at is null group by unique_key) x`); n > 1 {
				t.Errorf("%d jobs with one key", n)
			}
		}
	})
	for i := range 16 {
		wg.Go(func() {
			for n := range 60 {
				r, err := ways[i%len(ways)].enqueue(t.Context(), parcel{N: n % 3}, &EnqueueOpts{Unique: &Unique{}})
				if err != nil {
					t.Error(err)
				} else if !value[bool](t, db, `select exists (select from seen where id = $1)`, r.ID) {
					t.Errorf("%+v names no job", r)
				}
			}
		})
	}
	wg.Wait()
	over.Store(true)
	others.Wait()
}

// An open transaction that has changed the job in the way, such as a handler's, holds up no enqueue
// that keeps the job. An enqueue that would change it waits.
func TestUniqueNextToAnOpenTransaction(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for name, change := range map[string]string{
		"a completion": `update jobs set state = 'completed', finalized_at = now(), claimed_by = null where args = '{"n": 1}'`,
		"an edit":      `update jobs set tags = '{x}' where args = '{"n": 1}'`,
		"a deletion":   `delete from jobs where args = '{"n": 1}'`,
	} {
		there := db.unique(t, parcel{N: 1}, Unique{})
		end := db.hold(t, change)
		for _, way := range db.ways(t) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			r, err := way.enqueue(ctx, parcel{N: 1}, &EnqueueOpts{Unique: &Unique{}})
			if cancel(); err != nil || r != (Receipt{ID: there.ID, Existing: true}) {
				t.Errorf("%s: %s: %+v, %v", name, way.name, r, err)
			}
		}
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `set local lock_timeout = '50 ms'`); err != nil {
			t.Fatal(err)
		}
		_, err = db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, &EnqueueOpts{Unique: &Unique{OnConflict: ReplaceWaiting}})
		if pg.SQLState(err) != "55P03" {
			t.Errorf("%s: a replacement did not wait: %v", name, err)
		}
		_ = tx.Rollback(t.Context())
		end()
	}
}

// waiting waits until a session waits for a lock in this schema's table of jobs or for another
// transaction.
func (db *testDB) waiting(t testing.TB) {
	t.Helper()
	db.soon(t, 20*time.Second, "nobody waits", `select exists (select from pg_locks l join pg_locks j using (pid) where not l.granted and j.relation = 'jobs'::regclass)`)
}

// A job that another transaction has stored and not yet committed: the second waits, and then finds
// it, or stores its own.
func TestUniqueWaitsForItsStorer(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	for i, way := range db.ways(t) {
		for _, commits := range []bool{true, false} {
			n := 10*i + map[bool]int{true: 1}[commits]
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			first, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: n}, &EnqueueOpts{Unique: &Unique{}})
			if err != nil {
				t.Fatal(err)
			}
			var second Receipt
			done := make(chan error)
			go func() {
				var err error
				second, err = way.enqueue(t.Context(), parcel{N: n}, &EnqueueOpts{Unique: &Unique{}})
				done <- err
			}()
			db.waiting(t)
			if commits {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err := errors.Join(err, <-done); err != nil {
				t.Fatal(err)
			}
			if commits && second != (Receipt{ID: first.ID, Existing: true}) || !commits && (second.Existing || second.ID == first.ID) {
				t.Errorf("%s: committed %v: %+v and %+v", way.name, commits, first, second)
			}
		}
	}
}

// Two transactions that store the same two keys in opposite orders deadlock. The error says so, and
// 40P01.
func TestUniqueDeadlockIsNamed(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	enqueue := func(tx pgx.Tx, n int) error {
		_, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: n}, &EnqueueOpts{Unique: &Unique{}})
		return err
	}
	var txs [2]pgx.Tx
	for i := range txs {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if err := enqueue(tx, i); err != nil {
			t.Fatal(err)
		}
		txs[i] = tx
	}
	other := make(chan error)
	go func() { other <- errors.Join(enqueue(txs[1], 0), txs[1].Rollback(t.Context())) }()
	db.waiting(t)
	err := errors.Join(enqueue(txs[0], 1), txs[0].Rollback(t.Context()))
	if err == nil {
		err = <-other
	} else if err := <-other; err != nil {
		t.Errorf("both were ended: %v", err)
	}
	if !errors.Is(err, ErrUniqueDeadlock) || pg.SQLState(err) != "40P01" {
		t.Errorf("%v", err)
	}
}

// Batches that come with the same keys in opposite orders do not deadlock, or go through
// nevertheless.
func TestUniqueBatchesInOppositeOrders(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	forth := make([]EnqueueItem, 2500)
	for i := range forth {
		forth[i] = EnqueueItem{parcel{N: i}, &EnqueueOpts{Unique: &Unique{}}}
	}
	back := slices.Clone(forth)
	slices.Reverse(back)
	var wg sync.WaitGroup
	stored := make([]int, 4)
	for i := range stored {
		wg.Go(func() {
			receipts, err := db.client.EnqueueMany(t.Context(), [][]EnqueueItem{forth, back}[i%2])
			if err != nil {
				t.Error(err)
			}
			for _, r := range receipts {
				if !r.Existing {
					stored[i]++
				}
			}
		})
	}
	wg.Wait()
	if slices.Sort(stored); !slices.Equal(stored, []int{0, 0, 0, len(forth)}) || value[int](t, db, `select count(*) from jobs`) != len(forth) {
		t.Errorf("stored %d", stored)
	}
}

// One statement takes its keys in order, whatever the order of its batch.
func TestOneUniqueBatchTakesItsKeysInOrder(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	var wg sync.WaitGroup
	for i := range 8 {
		items := make([]EnqueueItem, 200)
		for n := range items {
			items[n] = EnqueueItem{parcel{N: n}, &EnqueueOpts{Unique: &Unique{}}}
		}
		if i%2 == 1 {
			slices.Reverse(items)
		}
		wg.Go(func() {
			for range 10 {
				// It rolls back, so that the next one has to insert too.
				tx, err := db.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := db.client.EnqueueManyTx(t.Context(), tx, items); err != nil {
					t.Error(err)
				}
				_ = tx.Rollback(t.Context())
			}
		})
	}
	wg.Wait()
}

// In a repeatable read transaction the job that somebody else has stored since its snapshot is
// Postgres' 40001.
func TestUniqueUnderRepeatableRead(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		db.exec(t, `delete from jobs`)
		tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `select from jobs limit 1`); err != nil {
			t.Fatal(err)
		}
		db.unique(t, parcel{N: 1}, Unique{})
		_, err = db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, &EnqueueOpts{Unique: &Unique{}})
		if pg.SQLState(err) != "40001" {
			t.Errorf("%s: %v", level, err)
		}
		_ = tx.Rollback(t.Context())
	}
}

// An index of the application's that refuses the job is an error, and is not taken for a job that
// is there; neither is a trigger that drops it.
func TestUniqueAndTheApplicationsOwnRules(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create unique index one_addressee on jobs ((args->>'to'))`)
	db.unique(t, parcel{N: 1, To: "x"}, Unique{})
	for _, way := range db.ways(t) {
		r, err := way.enqueue(t.Context(), parcel{N: 2, To: "x"}, &EnqueueOpts{Unique: &Unique{}})
		if pg.SQLState(err) != "23505" || r.Existing {
			t.Errorf("%s: %+v, %v", way.name, r, err)
		}
	}
	db.exec(t, `create function drops() returns trigger language plpgsql as $$ begin return null; end $$`)
	db.exec(t, `create trigger drops before insert on jobs for each row execute function drops()`)
	for _, way := range db.ways(t) {
		if r, err := way.enqueue(t.Context(), parcel{N: 3, To: "y"}, &EnqueueOpts{Unique: &Unique{}}); !errors.Is(err, ErrNotStored) {
			t.Errorf("%s: %+v, %v", way.name, r, err)
		}
	}
	db.exec(t, `create or replace function drops() returns trigger language plpgsql as $$ begin new.id := drover_ulid(); return new; end $$`)
	if r, err := db.client.Enqueue(t.Context(), parcel{N: 3, To: "z"}, &EnqueueOpts{Unique: &Unique{}}); !errors.Is(err, ErrNotStored) {
		t.Errorf("a trigger that changes the id: %+v, %v", r, err)
	}
}

// Until started, in a transaction: the job that is there does not start before the transaction has
// ended, so its handler sees what the transaction has written. A claim that is not committed makes
// the enqueue wait.
func TestUniqueUntilStartedWaitsForTheTransaction(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	opts := &EnqueueOpts{Unique: &Unique{Until: UntilStarted}}
	there := db.unique(t, parcel{N: 1}, *opts.Unique)
	s := db.stopped(t, SupervisorConfig{})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if r, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, opts); err != nil || r.ID != there.ID {
		t.Fatalf("%+v, %v", r, err)
	}
	if runs := s.claim(t); len(runs) != 0 {
		t.Error("it started before the transaction that relies on it has committed")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A claim that is not committed yet.
	end := db.hold(t, `update jobs set state = 'running', claimed_by = 's', claim_seq = 1, attempt = 1, attempted_at = now(), unique_until = null where id = (select id from jobs where id = $1 for update)`, there.ID)
	got := make(chan Receipt)
	go func() {
		var r Receipt
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
			r, err = db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, opts)
			return err
		}); err != nil {
			t.Error(err)
		}
		got <- r
	}()
	db.waiting(t)
	end() // the claim has failed: it still waits
	if r := <-got; r.ID != there.ID {
		t.Errorf("%+v, want %s", r, there.ID)
	}
}

// A redrive of a job next to an enqueue that is not committed waits, and then finds the key taken.
func TestRedriveRacesWithAUniqueEnqueue(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	dead := db.unique(t, parcel{N: 1}, Unique{})
	if _, err := db.client.Discard(t.Context(), dead.ID, Audit{}); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if r, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, &EnqueueOpts{Unique: &Unique{}}); err != nil || r.Existing {
		t.Fatal(r, err)
	}
	done := make(chan error)
	go func() { done <- db.client.RedriveJob(t.Context(), dead.ID, nil, Audit{}) }()
	db.waiting(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrState) {
		t.Errorf("RedriveJob = %v, want ErrState", err)
	}
	if db.get(t, dead.ID).State != Discarded {
		t.Error("two jobs with one key")
	}
}

// The reply to an enqueue is lost; repeated, without an id of the caller's, it finds the job.
func TestUniqueAgainAfterTheReplyWasLost(t *testing.T) {
	t.Parallel()
	w := &wire{}
	db := newTestDBOn(t, pgtest.NewMigratedPool(t, w.edit), Config{})
	db.unique(t, parcel{N: 0}, Unique{}) // the statements are cached
	for i := 1; i < 10; i++ {
		w.loseReplyTo(func([]byte) bool { return true })
		if _, err := db.client.Enqueue(t.Context(), parcel{N: i}, &EnqueueOpts{Unique: &Unique{}}); err == nil {
			t.Fatal("the reply was not lost")
		}
		r := db.unique(t, parcel{N: i}, Unique{})
		if there := value[string](t, db, `select id from jobs where args = jsonb_build_object('n', $1::int)`, i); r != (Receipt{ID: there, Existing: true}) {
			t.Errorf("%+v, want %s", r, there)
		}
	}
	batch := []EnqueueItem{{parcel{N: 20}, &EnqueueOpts{Unique: &Unique{}}}, {parcel{N: 21}, &EnqueueOpts{Unique: &Unique{}}}}
	w.loseReplyTo(func(written []byte) bool { return bytes.Contains(written, []byte("commit\x00")) })
	if _, err := db.client.EnqueueMany(t.Context(), batch); err == nil {
		t.Fatal("the reply was not lost")
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil || !receipts[0].Existing || !receipts[1].Existing {
		t.Errorf("%+v, %v", receipts, err)
	}
}
