package engine

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// A statement over many jobs fails as a whole if the database refuses one of them. Then claims, starts, settles and
// rescues try the jobs in parts with pickApart, to find the refused job. Each of these paths decides what the refusal
// means for the job. Then it calls refuse(), which takes the job out of the way of others (ADR 27).

// refusal is an item that the database refuses by itself.
type refusal[T any] struct {
	item T
	err  error
}

// apart is the result of pickApart.
type apart[T any] struct {
	passed  int // how many jobs passed; if none has, perhaps no single item is at fault
	refused []refusal[T]
	rest    []T // not tried, because an error that is no item's fault ended the walk
}

// pickApart tries items in parts. The parameter walk is pg.Bisect, or pg.BisectFailed if the items have already failed
// together. The function try returns how many jobs of its part passed. If an item is refused by itself, and simplify
// makes it simpler, pickApart tries it once more.
func pickApart[T any](walk func([]T, func([]T) error, func(T, error) error) error, items []T,
	try func([]T) (int, error), simplify func(T, error) bool,
) (a apart[T], err error) {
	a.rest = items
	attempt := func(part []T) error {
		n, err := try(part)
		if err == nil {
			a.passed, a.rest = a.passed+n, a.rest[len(part):]
		}
		return err
	}
	err = walk(items, attempt, func(item T, err error) error {
		if simplify != nil && simplify(item, err) {
			if again := attempt([]T{item}); again == nil || !pg.RowsFault(again) {
				return again
			}
		}
		a.refused, a.rest = append(a.refused, refusal[T]{item, err}), a.rest[1:]
		return nil
	})
	return a, err
}

// tableOpen returns an error if another session has locked the whole table jobs against writes, for example to create
// an index. Then each job would look as if the database refused it, so walks ask this before they blame a job.
func (s *Shared) tableOpen(base context.Context, link *store.Line) error {
	return s.roundTrip(base, link, func(ctx context.Context, conn store.Session) error { return conn.TableOpen(ctx, s.walkBound()) })
}

// patiently gives each item whose write timed out another try, alone and with more time: the server may have been busy,
// or another session may have locked the row. An item that passes now is removed from a.refused. If an item fails again
// and later() returns true, the item is also removed, because it is to be tried at another time. The result left counts
// the items that are to be tried later.
func (a *apart[T]) patiently(alone func(T) error, later func(T, error) bool) (left int) {
	a.refused = slices.DeleteFunc(a.refused, func(r refusal[T]) bool {
		if !pg.TimedOut(r.err) {
			return false
		}
		err := alone(r.item)
		wait := err != nil && later(r.item, err)
		if wait {
			left++
		}
		return err == nil || wait
	})
	return left
}

// refuse takes the job of a run out of the way of others, and logs this. It returns the job's new state, or
// store.SetAside. If the job's row no longer has the run's fence, or is locked, refuse returns "" and logs nothing.
func (s *Shared) refuse(base context.Context, link *store.Line, r *Run, g *store.Refused) (became string, err error) {
	err = s.roundTrip(base, link, func(ctx context.Context, conn store.Session) (err error) {
		became, err = s.refuseOn(ctx, conn, r, g, s.walkBound())
		return err
	})
	return became, err
}

// refuseOn does the same as refuse, on the given connection and with the given bound for each statement.
func (s *Shared) refuseOn(ctx context.Context, conn store.Session, r *Run, g *store.Refused, bound time.Duration) (became string, err error) {
	g.Fence = r.Fence
	if became, err = conn.Refuse(ctx, g, bound); became == "" && err == nil {
		return "", nil
	}
	text := s.Cfg.Clean(pg.Refusal(g.Why))
	s.seldom.log(ctx, s.log, slog.LevelError, g.Path+r.ID, "the database refuses a job, the others go on", slog.String("path", g.Path),
		r.inLog(), slog.String("became", cmp.Or(became, "unchanged")), slog.String("error", text))
	if became == string(store.Discarded) && err == nil {
		var took time.Duration
		if g.Path == store.PathSettle { // the run has ended; on other paths its goroutine may still change r.End
			took = r.End.Duration
		}
		s.report(EventDiscarded, &Run{ // a new run, because the goroutine of r may still change r
			Fence: store.Fence{ID: r.ID, Owner: cmp.Or(r.Owner, s.Lease.Load().ID)}, Queue: r.Queue, Kind: r.Kind,
			Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Labels: r.Labels,
			End: Outcome{State: store.Discarded, Class: ClassRefused, Text: text, Reason: reasonRefused, Duration: took},
		})
	}
	return became, err
}
