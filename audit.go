package drover

import (
	"context"
	"log/slog"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
)

// Audit names the person or program that changes something, and the reason. It is the last argument of every method of
// Client that changes existing rows. drover keeps it in the job's history, or in the row of the redrive, the failure
// group, the pause, the schedule or the archived job. DeleteMany, PurgeArchive, Restore and DeletePeriodic leave no row
// to keep it in, so they write it to Config.Logger, at level info, and to the server's log. If a call changes nothing,
// its Audit is not kept.
//
// The zero value is ready to use. A By or Why that is too long or has invisible characters is an *InvalidError.
type Audit struct {
	// By is a person or a program: up to 128 bytes, without control and invisible characters. Empty means the database's
	// user.
	By string

	// Why is a text of up to 512 bytes. It may have several lines, and no other control or invisible characters.
	Why string

	// Seen makes the change depend on what the caller saw. Set it to NotPaused, or to the Seen of the JobInfo, the
	// PauseInfo, the FailureGroup, the PeriodicJob or the Redrive that the decision is based on. If a person has
	// changed that row since then, nothing is changed, and the error is ErrState. Its text names this person, and the
	// time. So a button that two people press has one effect. The database compares Seen while the row is locked. If
	// Seen is empty, the change is made anyway. Methods that change many jobs, start a redrive, or set a schedule
	// refuse a Seen with an *InvalidError.
	Seen string
}

// NotPaused is the Audit.Seen of somebody who saw that a scope is not paused.
const NotPaused = "none"

const (
	maxBy   = 128
	maxWhy  = 512
	maxSeen = 512
)

// check reports the mistakes in an Audit.
func (a Audit) check(bad *problems) {
	if a.Seen != "" {
		bad.add("Seen", "is for changes of one job, pause, failure group, schedule or redrive")
	}
	a.checkOne(bad)
}

// checkOne is check for a method that changes one row: it allows Seen.
func (a Audit) checkOne(bad *problems) {
	bad.join(checkText("Seen", a.Seen, maxSeen))
	if err := checkText("By", a.By, maxBy); err != nil {
		bad.join(err)
	} else {
		bad.join(checkSeen("By", a.By))
	}
	if err := checkText("Why", a.Why, maxWhy); err != nil {
		bad.join(err)
		return
	}
	for at, r := range a.Why {
		if unseen(r) || unicode.IsControl(r) && r != '\n' && r != '\t' {
			bad.add("Why", "control or invisible character %U at byte %d", r, at)
			return
		}
	}
}

// checkChange returns the mistakes in the arguments of a change of one job or redrive. The parameter bad has the
// mistakes that the caller has found, and the parameter what names the change. If no row can have the id, the error is
// ErrNotFound. Otherwise checkChange returns the id as the tables have it.
func (a Audit) checkChange(bad *problems, what, id string) (string, error) {
	a.checkOne(bad)
	if err := bad.err(); err != nil {
		return id, err
	}
	if !isID(id) {
		return id, doing(ErrNotFound, "%s %q", what, id)
	}
	return pgtext.ID(id), nil
}

// by returns By for the SQL functions, which take null for the session's user.
func (a Audit) by() any { return pg.OrNull(a.By) }

// logChange records a change that leaves no row to keep an Audit in.
func (c *Client) logChange(ctx context.Context, what string, jobs int64, audit Audit) {
	if jobs == 0 {
		return
	}
	c.log.InfoContext(ctx, what, audit.attrs(slog.Int64("jobs", jobs))...)
}

// attrs adds By and Why to the attributes of a log line.
func (a Audit) attrs(attrs ...any) []any {
	for _, attr := range []slog.Attr{slog.String("by", a.By), slog.String("why", a.Why)} {
		if attr.Value.String() != "" {
			attrs = append(attrs, attr)
		}
	}
	return attrs
}

// subject is the kind of row that an Audit.Seen is about.
type subject string

const (
	aJob      subject = "job"
	aPause    subject = "pause"
	aFailure  subject = "failure"
	aRedrive  subject = "redrive"
	aSchedule subject = "schedule"

	// With these two, the change is made even if the row has changed since the caller saw it, unless a person changed
	// it. For example, a job ran, or a schedule ticked.
	aJobsLife      subject = aJob + life
	aSchedulesLife subject = aSchedule + life

	life = "'s life"
)

// sqlRequireSeen compares a row with what the caller saw. It locks the row until the transaction with the change ends.
const sqlRequireSeen = `select drover_require_seen($1, $2, $3, life => $4)`

// requireSeen returns ErrState if the row is not as the caller saw it. It does nothing if Seen is empty.
func (a Audit) requireSeen(ctx context.Context, tx pgx.Tx, of subject, id string) error {
	if a.Seen == "" {
		return nil
	}
	name, lives := strings.CutSuffix(string(of), life)
	_, err := tx.Exec(ctx, sqlRequireSeen, name, id, a.Seen, lives)
	return pg.Classify(err)
}

// change compares Audit.Seen with a row, then runs the statement that changes the row, and reads the statement's result
// into the pointers in to. All of this is one transaction. Another transaction may hold the unique key that a job gets,
// and wait for the job. If Postgres ends this transaction because of such a deadlock, change repeats it. If the
// statement returns no row, the error is ErrNotFound.
func (s *desk) change(ctx context.Context, audit Audit, of subject, id string, to []any, sql string, args ...any) (err error) {
	for range 3 {
		err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
			if err := audit.requireSeen(ctx, tx, of, id); err != nil {
				return err
			}
			err := tx.QueryRow(ctx, sql, args...).Scan(to...)
			if pg.NoRows(err) {
				return ErrNotFound
			}
			return pg.Classify(err)
		})
		if pg.SQLState(err) != "40P01" {
			break
		}
	}
	if of == aJob || of == aJobsLife {
		return s.archived(ctx, id, err)
	}
	return err
}

// changeFound is change for a statement that returns whether there is such a row.
func (s *desk) changeFound(ctx context.Context, audit Audit, of subject, id, sql string, args ...any) error {
	found := false
	err := s.change(ctx, audit, of, id, []any{&found}, sql, args...)
	if err == nil && !found {
		err = ErrNotFound
	}
	return err
}
