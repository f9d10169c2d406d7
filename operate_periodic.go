package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Periodic is a schedule: when to enqueue which job. Declare it in SupervisorConfig.Periodic, or set it
// at run time with Client.SetPeriodic. It is a row in the database, so no tick depends on one process.
type Periodic struct {
	// Name identifies the schedule in the database: 1 to 128 bytes. Required.
	Name string

	// Schedule is when it ticks. Required. One of
	//
	//	0 2 * * mon-fri   minute, hour, day of the month, month, day of the week
	//	@daily            also @hourly, @weekly, @monthly, @yearly: in the first minute of each
	//	@every 90s        from when it was stored: 1 s to 366 days, in h, m, s and ms
	//
	// Fields take numbers, names (jan, mon), lists (1,15), ranges (1-5) and steps (*/10, 8-18/2); 0
	// and 7 are Sunday. If the day of the month and the day of the week are both restricted, either
	// may match. Another Schedule or Zone begins the schedule anew; other changes, and deploys,
	// move no tick.
	Schedule string

	// Zone is the time zone in which the fields are read, such as "Europe/Berlin". Zero means UTC. Its
	// rules are those of the server. A time that does not exist, because clocks are put forward, ticks at
	// the first moment after the gap. A time that exists twice ticks the first time; only a schedule of
	// every hour (an hour field of *) ticks in both.
	Zone string

	// Args are the args of each job. Their kind is the job's kind. Required.
	Args Args

	// Opts are the settings of each job. Nil means the defaults. ID, ScheduledAt, ExpiresAt and
	// RetryUntil are refused, because they make no sense for more than one job. So is Unique: see
	// Overlap.
	Opts *EnqueueOpts

	// Jitter spreads jobs: each is due at a random time in the Jitter after its tick. Zero means none; at
	// most 24 h.
	Jitter time.Duration

	// CatchUp is what becomes of ticks whose jobs no supervisor has enqueued within a minute,
	// because none ran or the database was down. Zero means CatchUpSkip.
	CatchUp CatchUp

	// Overlap is whether a tick makes a job while the last one has not ended. Zero means OverlapAllow.
	Overlap Overlap
}

// CatchUp is what becomes of ticks that were missed. They are counted and reported in any case: see
// Hooks.PeriodicSkipped.
type CatchUp string

// The ways to catch up. A database that is restored from a backup catches up as well.
const (
	CatchUpSkip CatchUp = "skip" // missed ticks make no job
	CatchUpOnce CatchUp = "once" // one job for all of them, with the time of the last one
	CatchUpAll  CatchUp = "all"  // a job for each of the last 100
)

// Overlap is whether two jobs of a schedule may be unfinished at once.
type Overlap string

// The kinds of overlap.
const (
	OverlapAllow Overlap = "allow" // ticks do not look at the last job
	OverlapSkip  Overlap = "skip"  // a tick makes no job while the last one has not ended
)

// PeriodicRun names the schedule that made a job, and the time that the job is for.
type PeriodicRun struct {
	Name   string    // of the schedule
	Tick   time.Time // the time of the schedule that the job is for, without jitter
	ByHand bool      // Client.RunPeriodic made it; Tick is when
}

// Periodic returns which schedule made the job. ok is false if none did.
func (j *Job) Periodic() (run PeriodicRun, ok bool) {
	var doc struct {
		Mark *struct {
			Name   string    `json:"name"`
			Tick   time.Time `json:"tick"`
			ByHand bool      `json:"by_hand"`
		} `json:"drover:periodic"`
	}
	if json.Unmarshal(j.Metadata, &doc) != nil || doc.Mark == nil {
		return PeriodicRun{}, false
	}
	return PeriodicRun(*doc.Mark), true
}

// PeriodicJob is a schedule as it is stored.
type PeriodicJob struct {
	Name        string          `json:"name"`
	Kind        string          `json:"kind"`
	Queue       string          `json:"queue"`
	Schedule    string          `json:"schedule"`
	Zone        string          `json:"zone"`
	State       PeriodicState   `json:"state"`
	Declared    bool            `json:"declared"`        // in code; false: it was made at run time
	Build       string          `json:"build,omitempty"` // the build whose settings it has, if it was declared in code
	Args        json.RawMessage `json:"args"`
	Options     json.RawMessage `json:"options"`             // as parameters of the SQL function drover_enqueue
	JitterMS    int64           `json:"jitter_ms,omitempty"` // in milliseconds
	CatchUp     CatchUp         `json:"catch_up"`
	Overlap     Overlap         `json:"overlap"`
	Next        []time.Time     `json:"next"`                   // the next ten ticks; none if it is undeclared, or paused until it is resumed
	LastAt      *time.Time      `json:"last_at,omitempty"`      // the last tick, even if it made no job
	LastJob     string          `json:"last_job,omitempty"`     // the last job that it made
	LastState   State           `json:"last_state,omitempty"`   // of that job; "" if its row is gone
	PausedUntil *time.Time      `json:"paused_until,omitempty"` // nil with State PeriodicPaused: until it is resumed
	Jobs        int64           `json:"jobs"`                   // how many it has made
	Skipped     int64           `json:"skipped"`                // ticks that were missed, or left out because the last job had not ended
	SkippedAt   *time.Time      `json:"skipped_at,omitempty"`
	SkippedWhy  string          `json:"skipped_why,omitempty"`
	Problem     string          `json:"problem,omitempty"` // why the database refused the job of a tick; the newest such error
	ProblemAt   *time.Time      `json:"problem_at,omitempty"`
	CreatedAt   time.Time       `json:"created_at"`
	UpdatedAt   time.Time       `json:"updated_at"` // when somebody last changed it
	UpdatedBy   string          `json:"updated_by"`
	UpdatedWhy  string          `json:"updated_why,omitempty"`
}

// PeriodicState is whether a schedule ticks.
type PeriodicState string

// The states of a schedule.
const (
	PeriodicActive     PeriodicState = "active"
	PeriodicPaused     PeriodicState = "paused"
	PeriodicUndeclared PeriodicState = "undeclared" // it was declared in code, and no running supervisor declares it any more
)

// SetPeriodic stores a schedule, or changes the one of that name. It stays until it is deleted, and any
// supervisor ticks it. If neither Schedule nor Zone changes, the next tick stays as it is.
//
// Errors, before anything is stored: *InvalidError with the field; ErrState if the schedule is declared
// in code.
func (c *Client) SetPeriodic(ctx context.Context, p Periodic, by By) error {
	var bad problems
	doc := c.encodePeriodic(&bad, p)
	by.check(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if err := c.store.setPeriodic(ctx, doc, by); err != nil {
		return fmt.Errorf("set schedule %q: %w", p.Name, periodicError(err))
	}
	c.running.tick()
	return nil
}

// PausePeriodic keeps a schedule from ticking before until, by the server's clock; the zero time
// means until ResumePeriodic. The ticks of a pause are left out, whatever CatchUp is. A pause
// survives deploys. Errors: ErrNotFound; *InvalidError if until is past.
func (c *Client) PausePeriodic(ctx context.Context, name string, until time.Time, by By) error {
	return c.changePeriodic("pause", name, by, func(bad *problems) func() error {
		var at *time.Time
		if !until.IsZero() {
			at = instant(bad, "until", until)
		}
		return func() error { return c.store.pausePeriodic(ctx, name, at, by) }
	})
}

// ResumePeriodic ends a pause. The next tick is the schedule's first from now on. Errors: ErrNotFound.
func (c *Client) ResumePeriodic(ctx context.Context, name string, by By) error {
	defer c.running.tick()
	return c.changePeriodic("resume", name, by, func(*problems) func() error {
		return func() error { return c.store.resumePeriodic(ctx, name, by) }
	})
}

// RunPeriodic enqueues one job of a schedule now, in addition to its ticks, and returns the job's
// id. It does so even if the schedule is paused. Errors: ErrNotFound; ErrState if the last job has
// not ended and Overlap is OverlapSkip, or if the schedule has made the job opts.ID before, because
// the call is repeated; ErrIDConflict if another job has that ID.
func (c *Client) RunPeriodic(ctx context.Context, name string, opts *RunOpts, by By) (job string, err error) {
	err = c.changePeriodic("run", name, by, func(bad *problems) func() error {
		as := opts.check(bad)
		return func() error {
			job, err = c.store.runPeriodic(ctx, name, as, by)
			return err
		}
	})
	return job, err
}

// DeletePeriodic deletes a schedule. It stops at once; its jobs stay. Errors: ErrNotFound; ErrState
// if a running supervisor declares the schedule in code, because it would store the schedule again.
// Pause the schedule instead.
func (c *Client) DeletePeriodic(ctx context.Context, name string, by By) error {
	err := c.changePeriodic("delete", name, by, func(*problems) func() error {
		return func() error { return c.store.deletePeriodic(ctx, name, by) }
	})
	if err == nil {
		e := Event{Periodic: name, Count: 1, By: by.Who, Why: by.Why}
		c.log.LogAttrs(ctx, slog.LevelInfo, "schedule deleted", e.attrs()...)
	}
	return err
}

// PeriodicJobs lists all schedules, by name.
func (c *Client) PeriodicJobs(ctx context.Context) ([]PeriodicJob, error) {
	list, err := c.store.periodic(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list schedules: %w", err)
	}
	return list, nil
}

// PeriodicJob reads one schedule. Errors: ErrNotFound.
func (c *Client) PeriodicJob(ctx context.Context, name string) (*PeriodicJob, error) {
	if unknownSchedule(name) {
		return nil, fmt.Errorf("get schedule %q: %w", name, ErrNotFound)
	}
	job, err := c.store.periodicJob(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("get schedule %q: %w", name, err)
	}
	return job, nil
}

// PreviewPeriodic returns the next n ticks of a schedule in a zone ("" is UTC), 1 to 1000, by the
// server's clock. None means that it never ticks. Errors: *InvalidError.
func (c *Client) PreviewPeriodic(ctx context.Context, schedule, zone string, n int) ([]time.Time, error) {
	var bad problems
	checkSchedule(&bad, schedule, zone)
	if n < 1 || n > 1000 {
		bad.add("n", "%d is not 1 to 1000", n)
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	ticks, err := c.store.previewPeriodic(ctx, schedule, zone, n)
	if err != nil {
		return nil, fmt.Errorf("preview schedule %q: %w", schedule, periodicError(err))
	}
	return ticks, nil
}

// changePeriodic carries out a verb: prepare checks its arguments.
func (c *Client) changePeriodic(verb, name string, by By, prepare func(*problems) func() error) error {
	var bad problems
	by.check(&bad)
	change := prepare(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if unknownSchedule(name) {
		return fmt.Errorf("%s schedule %q: %w", verb, name, ErrNotFound)
	}
	if err := change(); err != nil {
		return fmt.Errorf("%s schedule %q: %w", verb, name, periodicError(err))
	}
	return nil
}

// encodeDeclared encodes the schedules of a supervisor, by name: those that start at once must not deadlock.
func (c *Client) encodeDeclared(bad *problems, declared []Periodic) []periodicDoc {
	var docs []periodicDoc
	seen := map[string]bool{}
	for i, p := range declared {
		field := fmt.Sprintf("Periodic[%d]", i)
		var own problems
		doc := c.encodePeriodic(&own, p)
		if seen[p.Name] {
			own.add("Name", "%q is there twice", p.Name)
		}
		seen[p.Name] = true
		bad.at(field, own.err())
		docs = append(docs, *doc)
	}
	return docs
}

// encodePeriodic checks all of a schedule that needs no server.
func (c *Client) encodePeriodic(bad *problems, p Periodic) *periodicDoc {
	doc := &periodicDoc{
		Name: p.Name, Schedule: p.Schedule, Zone: cmp.Or(p.Zone, "UTC"), JitterMS: (p.Jitter + time.Millisecond - 1).Milliseconds(),
		CatchUp: string(cmp.Or(p.CatchUp, CatchUpSkip)), Overlap: string(cmp.Or(p.Overlap, OverlapAllow)),
	}
	bad.join(checkName("Name", p.Name))
	checkSchedule(bad, p.Schedule, p.Zone)
	if p.Jitter < 0 || p.Jitter > 24*time.Hour {
		bad.add("Jitter", "%v is not 0 to 24 h", p.Jitter)
	}
	if !slices.Contains([]CatchUp{"", CatchUpSkip, CatchUpOnce, CatchUpAll}, p.CatchUp) {
		bad.add("CatchUp", "%q is none of %q, %q, %q", p.CatchUp, CatchUpSkip, CatchUpOnce, CatchUpAll)
	}
	if !slices.Contains([]Overlap{"", OverlapAllow, OverlapSkip}, p.Overlap) {
		bad.add("Overlap", "%q is neither %q nor %q", p.Overlap, OverlapAllow, OverlapSkip)
	}
	var opts EnqueueOpts
	if p.Opts != nil {
		opts = *p.Opts
	}
	for _, never := range []struct {
		field string
		set   bool
	}{{"ID", opts.ID != ""}, {"ScheduledAt", !opts.ScheduledAt.IsZero()}, {"ExpiresAt", !opts.ExpiresAt.IsZero()}, {"RetryUntil", !opts.RetryUntil.IsZero()}} {
		if never.set {
			bad.add("Opts."+never.field, "makes no sense for a job that is enqueued again and again")
		}
	}
	if opts.Unique != nil {
		bad.add("Opts.Unique", "does not go with a schedule: OverlapSkip makes no job while the last one has not ended")
	}
	opts.ID, opts.ScheduledAt, opts.ExpiresAt, opts.RetryUntil = "", time.Time{}, time.Time{}, time.Time{}
	var args, settings problems
	job := &newJob{Queue: opts.Queue, Priority: opts.Priority, Tags: opts.Tags, Key: opts.Key}
	c.encodeArgs(&args, job, p.Args)
	for _, err := range args.errs { // they name what an enqueue names
		var invalid *InvalidError
		if errors.As(err, &invalid) {
			err = &InvalidError{Field: strings.NewReplacer("args", "Args", "kind", "Args.Kind").Replace(invalid.Field), Reason: invalid.Reason, Err: invalid.Err}
		}
		bad.join(err)
	}
	job.encodeOptions(&settings, &opts)
	bad.at("Opts", settings.err())
	doc.Kind, doc.Args, doc.Options = job.Kind, job.Args, job.options()
	return doc
}

// options are the job's settings as drover_enqueue_many takes them, without what is not the same for each job.
func (j *newJob) options() map[string]json.RawMessage {
	raw, err := json.Marshal(j)
	options := map[string]json.RawMessage{}
	if err != nil || json.Unmarshal(raw, &options) != nil {
		return nil // its parts were marshalled before, or refused
	}
	for _, own := range []string{"id", "kind", "args"} {
		delete(options, own)
	}
	return options
}

// checkSchedule leaves what a schedule means to the server, which has the zones.
func checkSchedule(bad *problems, schedule, zone string) {
	if strings.TrimSpace(schedule) == "" {
		bad.add("Schedule", "is missing")
	}
	bad.join(checkText("Schedule", schedule, 1000))
	bad.join(checkText("Zone", zone, 100))
}

// periodicFields are the library's names of what the database names in a refusal.
func periodicFields() *strings.Replacer {
	return strings.NewReplacer("options.queue", "Opts.Queue", "options.priority", "Opts.Priority", "options.delay", "Opts.Delay",
		"options.max_attempts", "Opts.MaxAttempts", "options.retry", "Opts.Retry", "options.timeout", "Opts.Timeout", "options.tags", "Opts.Tags",
		"options.metadata", "Opts.Metadata", "options.concurrency_key", "Opts.Key", "options", "Opts", "name", "Name", "kind", "Args.Kind", "schedule", "Schedule",
		"zone", "Zone", "jitter", "Jitter", "catch_up", "CatchUp", "overlap", "Overlap")
}

// periodicError makes an *InvalidError of what the database refuses of a schedule: its text begins with the field.
func periodicError(err error) error {
	if text := refusal(err); sqlState(err) == "22023" && strings.HasPrefix(text, "drover: ") {
		if field, reason, ok := strings.Cut(strings.TrimPrefix(text, "drover: "), ": "); ok {
			return &InvalidError{Field: periodicFields().Replace(field), Reason: reason, Err: err}
		}
	}
	return err
}
