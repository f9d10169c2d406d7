package drover

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// Periodic is a schedule: when to enqueue which job. Declare it in SupervisorConfig.Periodic, or set it at run time with
// Client.SetPeriodic. It is a row in the database, so no tick depends on one process.
type Periodic struct {
	// Name identifies the schedule in the database: 1 to 128 bytes, with characters as in kinds. Required.
	Name string

	// Schedule sets the times at which the schedule ticks: at each tick, it makes a job. Required. One of
	//
	//	0 2 * * mon-fri      minute, hour, day of the month, month, day of the week
	//	*/10 0 2 * * mon-fri the same with the second in front
	//	@daily               also @hourly, @weekly, @monthly, @yearly: in the first minute of each
	//	@every 90s           from when it was stored: 1 s to 366 days, in h, m, s and ms
	//
	// Fields take numbers, names (jan, mon), lists (1,15), ranges (1-5) and steps (*/10, 8-18/2); 0 and 7 are Sunday. If
	// the day of the month and the day of the week are both restricted, either may match. If you change Schedule or Zone,
	// the schedule begins anew. Other changes, and deploys, move no tick.
	Schedule string

	// Zone is the time zone in which the fields are read, such as "Europe/Berlin". Zero means UTC. The server's time zone
	// data decide. A time that does not exist, because clocks are put forward, ticks at the first moment after the gap. A
	// time that exists twice ticks the first time; only a schedule of every hour (an hour field of *) ticks both times.
	Zone string

	// Args are the args of each job. Their kind is the job's kind. Required.
	Args Args

	// Opts are the settings of each job. Nil means the defaults. ID, ScheduledAt, ExpiresAt, RetryUntil and
	// DisableNotify are refused, because they make no sense for more than one job. With Unique, a tick makes no job,
	// and counts as skipped, if there is another job like the new one; Unique.OnConflict must be KeepExisting. The
	// period of UntilPassed begins at the tick. If it is longer than the time between two ticks, ticks are skipped.
	Opts *EnqueueOpts

	// Jitter spreads the jobs: each job is due at a random time between its tick and the tick plus Jitter. Zero means
	// none; at most 24 h.
	Jitter time.Duration

	// CatchUp is what becomes of ticks whose jobs no supervisor has enqueued within a minute, because none ran or the
	// database was down. Zero means CatchUpSkip.
	CatchUp CatchUp

	// Overlap is whether a tick makes a job while the last job has not ended. Zero means OverlapAllow.
	Overlap Overlap

	// RunAtStart makes the first tick come when the schedule is stored under a new name. Later ticks follow Schedule.
	// RunAtStart has no effect on a schedule that is stored already: a restart, a deploy and another Schedule make no
	// extra job. A schedule that was deleted is new when it is stored again.
	RunAtStart bool
}

// CatchUp is what becomes of ticks that were missed. Missed ticks are counted and reported in any case: see
// Hooks.PeriodicSkipped.
type CatchUp string

// The ways to catch up. After a restore from a backup, schedules catch up as well.
const (
	CatchUpSkip CatchUp = "skip" // missed ticks make no job
	CatchUpOnce CatchUp = "once" // one job for all missed ticks, with the time of the last missed tick
	CatchUpAll  CatchUp = "all"  // a job for each of the last 100 missed ticks
)

// Overlap is whether two jobs of a schedule may be unfinished at the same time.
type Overlap string

// The kinds of overlap.
const (
	OverlapAllow Overlap = "allow" // ticks do not look at the last job
	OverlapSkip  Overlap = "skip"  // a tick makes no job while the last job has not ended
)

// PeriodicRun names the schedule that made a job, and the time that the job is for.
type PeriodicRun struct {
	Name   string    // the schedule's name
	Tick   time.Time // the time of the schedule that the job is for, without jitter
	ByHand bool      // Client.RunPeriodic made the job, at the time Tick
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

// encodeDeclared checks and encodes the schedules of a supervisor.
func (c *Client) encodeDeclared(bad *problems, declared []Periodic) []store.SchedulePolicy {
	var schedules []store.SchedulePolicy
	seen := map[string]bool{}
	for i := range declared {
		p := &declared[i]
		var own problems
		policy := c.encodePeriodic(&own, p)
		if seen[p.Name] {
			own.add("Name", "%q is there twice", p.Name)
		}
		seen[p.Name] = true
		bad.at(fmt.Sprintf("Periodic[%d]", i), own.err())
		schedules = append(schedules, policy)
	}
	return schedules
}

// encodePeriodic checks everything about a schedule that can be checked without the server.
func (c *Client) encodePeriodic(bad *problems, p *Periodic) store.SchedulePolicy {
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
	job := c.encodePeriodicJob(bad, p)
	return store.SchedulePolicy{
		Name: p.Name, Kind: job.Kind, Args: job.Args, Options: job.options(), Schedule: p.Schedule, Zone: cmp.Or(p.Zone, "UTC"),
		JitterMS: (p.Jitter + time.Millisecond - 1).Milliseconds(), CatchUp: string(cmp.Or(p.CatchUp, CatchUpSkip)),
		Overlap: string(cmp.Or(p.Overlap, OverlapAllow)), RunAtStart: p.RunAtStart,
	}
}

// encodePeriodicJob checks the args and the options of a schedule's jobs. The options that no schedule can have are
// listed here. The other options are listed in drover_periodic_check (migrations/00019_periodic.sql).
func (c *Client) encodePeriodicJob(bad *problems, p *Periodic) *newJob {
	var opts EnqueueOpts
	if p.Opts != nil {
		opts = *p.Opts
	}
	for _, never := range []struct {
		field string
		set   bool
	}{{"ID", opts.ID != ""}, {"ScheduledAt", !opts.ScheduledAt.IsZero()}, {"ExpiresAt", !opts.ExpiresAt.IsZero()}, {"RetryUntil", !opts.RetryUntil.IsZero()}, {"DisableNotify", opts.DisableNotify}} {
		if never.set {
			bad.add("Opts."+never.field, "makes no sense for a job that is enqueued again and again")
		}
	}
	opts.ID, opts.ScheduledAt, opts.ExpiresAt, opts.RetryUntil, opts.DisableNotify = "", time.Time{}, time.Time{}, time.Time{}, false
	var args, settings problems
	job := &newJob{Queue: opts.Queue, Priority: opts.Priority, Tags: opts.Tags, ConcurrencyKey: opts.Key}
	c.encodeArgs(&args, job, p.Args)
	for _, err := range args.errs { // these errors have the field names of an enqueue
		var invalid *InvalidError
		if errors.As(err, &invalid) {
			err = &InvalidError{Field: strings.NewReplacer("args", "Args", "kind", "Args.Kind").Replace(invalid.Field), Reason: invalid.Reason, Err: invalid.Err}
		}
		bad.join(err)
	}
	job.encodeOptions(&settings, &opts, nil)
	if u := opts.Unique; u != nil && u.OnConflict != "" && u.OnConflict != KeepExisting {
		settings.add("Unique.OnConflict", "is not KeepExisting: a tick changes no job")
	} else {
		job.Uniqueness = u.encode(&settings, job.Args, job.ConcurrencyKey, true)
	}
	bad.at("Opts", settings.err())
	return job
}

// options returns the job's settings as drover_enqueue_many takes them, without the id, the kind and the args.
func (j *newJob) options() json.RawMessage {
	options := map[string]json.RawMessage{}
	raw, err := json.Marshal(j)
	if err == nil {
		err = json.Unmarshal(raw, &options)
	}
	for _, own := range []string{"id", "kind", "args"} {
		delete(options, own)
	}
	if err == nil {
		raw, err = json.Marshal(options)
	}
	if err != nil { // only if a part was refused before
		return json.RawMessage(`{}`)
	}
	return raw
}

// checkSchedule checks only that the texts are not missing, and can be sent. The server checks their meaning, because
// it knows the zones.
func checkSchedule(bad *problems, schedule, zone string) {
	if strings.TrimSpace(schedule) == "" {
		bad.add("Schedule", "is missing")
	}
	bad.join(checkText("Schedule", schedule, 1000))
	bad.join(checkText("Zone", zone, 100))
}

// periodicError turns an error in which the database refuses a schedule into an *InvalidError.
func periodicError(err error) error {
	return refusedField(err, strings.NewReplacer("options.queue", "Opts.Queue", "options.priority", "Opts.Priority", "options.delay", "Opts.Delay",
		"options.max_attempts", "Opts.MaxAttempts", "options.retry", "Opts.Retry", "options.timeout", "Opts.Timeout", "options.tags", "Opts.Tags",
		"options.metadata", "Opts.Metadata", "options.concurrency_key", "Opts.Key", "options", "Opts", "name", "Name", "kind", "Args.Kind", "schedule", "Schedule",
		"zone", "Zone", "jitter", "Jitter", "catch_up", "CatchUp", "overlap", "Overlap"))
}
