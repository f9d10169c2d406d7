package drover

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RetryStrategy decides how long a failed job waits for its next run. It is one of Exponential, Linear, Constant and
// Custom; nothing else can implement it. Strategies are plain values and safe for concurrent use.
//
// A wait is computed in three steps: first the formula, then the bound Max, then the jitter. Max comes before jitter,
// so jobs that have reached Max still spread out. Therefore a wait may exceed Max by its jitter. If Max is a hard
// limit, use JitterDown, FullJitter or EqualJitter. Before jitter no wait is longer than 100 years, whatever the
// settings and the attempt.
type RetryStrategy interface {
	// delay is the wait after f, jitter included. If ok is false, there is no next run. If err is not nil, the Func of a
	// Custom is missing or has panicked, and d and ok come from Exponential.
	delay(f FailedRun) (d time.Duration, ok bool, err error)
	// validate reports every setting that is refused.
	validate() error
	// stored returns the form that is stored, with defaults filled in.
	stored() storedStrategy
}

var (
	_ RetryStrategy = Exponential{}
	_ RetryStrategy = Linear{}
	_ RetryStrategy = Constant{}
	_ RetryStrategy = Custom{}
)

// errUnknownStrategy means that this process has no Func for the Name of a Custom.
var errUnknownStrategy = errors.New("drover: no custom retry strategy of this name")

// errPreview is the Err of the failures that Schedule and TotalDelay make up.
var errPreview = errors.New("drover: preview")

// maxBackoff bounds a wait before jitter. With jitter, a wait is at most twice maxBackoff: a time.Duration holds it.
const maxBackoff = 100 * 365 * 24 * time.Hour

// FailedRun is a failed run, as a Custom strategy sees it.
type FailedRun struct {
	Attempt    int           // the number of this run among the runs that count, from 1
	RetryIndex int           // the number of the retry that comes next, from 0: Attempt - 1
	Err        error         // the error of the run; not nil
	Job        *Job          // the job; Schedule and TotalDelay set only ID, Attempt, MaxAttempts and LastDelay
	LastDelay  time.Duration // the wait before this run, 0 on the first

	noJitter bool // the wait gets no jitter, for TotalDelay
}

func (f FailedRun) jobID() string {
	if f.Job == nil {
		return ""
	}
	return f.Job.ID
}

// DefaultRetry is the strategy if neither the job nor its worker nor its queue names one: Exponential{}.
func DefaultRetry() RetryStrategy { return Exponential{} }

// Every returns the strategy that waits d before each retry. It is short for Constant{Delay: d}, so zero means 30 s.
func Every(d time.Duration) Constant { return Constant{Delay: d} }

// Schedule previews the waits of a job that fails every time. The first wait comes after run 1, so there is one wait
// fewer than runs. Jitter depends only on the job's id and attempt, so the job will get exactly these waits. The
// schedule is shorter if a Custom ends the retries. A nil strategy means DefaultRetry.
func Schedule(s RetryStrategy, jobID string, runs int) []time.Duration {
	return slices.Collect(waits(s, jobID, runs, false))
}

// TotalDelay is how long s keeps a job alive: the sum of the waits between the first and the last of the runs,
// without jitter, at most 100 years. A nil strategy means DefaultRetry.
func TotalDelay(s RetryStrategy, runs int) time.Duration {
	total := time.Duration(0)
	for d := range waits(s, "", runs, true) {
		total += d
		if total >= maxBackoff {
			return maxBackoff
		}
	}
	return total
}

// waits yields the wait after each run except the last.
func waits(s RetryStrategy, jobID string, runs int, noJitter bool) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		s, last := orDefault(s), time.Duration(0)
		for a := 1; a < runs; a++ {
			job := &Job{ID: jobID, Attempt: a, MaxAttempts: runs, LastDelay: last}
			d, ok, _ := s.delay(FailedRun{Attempt: a, RetryIndex: a - 1, Err: errPreview, Job: job, LastDelay: last, noJitter: noJitter})
			if !ok || !yield(d) {
				return
			}
			last = d
		}
	}
}

func orDefault(s RetryStrategy) RetryStrategy {
	if s == nil {
		return DefaultRetry()
	}
	return s
}

// Exponential waits Base × Multiplier^(attempt-1) after the attempt that failed. The zero value is the default
// strategy: it waits 15 s, 30 s, 60 s and so on, up to an hour, and jitter makes each wait up to a quarter longer.
type Exponential struct {
	// Base is the wait after the first run. Zero means 15 s; negative is refused. If it is above Max, every wait is
	// Max.
	Base time.Duration

	// Multiplier is the factor from each wait to the next. Zero means 2; below 1, NaN and infinite are refused.
	Multiplier float64

	// Max bounds the wait before jitter, including the first wait. Zero means 1 h; negative is refused.
	Max time.Duration

	// Jitter spreads the waits. Zero means JitterUp(0.25); NoJitter turns it off.
	Jitter Jitter
}

func (s Exponential) filled() Exponential {
	s.Base = cmp.Or(s.Base, 15*time.Second)
	s.Multiplier = cmp.Or(s.Multiplier, 2)
	s.Max = cmp.Or(s.Max, time.Hour)
	s.Jitter = cmp.Or(s.Jitter, "up:0.25")
	return s
}

func (s Exponential) delay(f FailedRun) (time.Duration, bool, error) {
	s = s.filled()
	d := maxBackoff
	raw := float64(s.Base) * math.Pow(s.Multiplier, float64(max(f.Attempt, 1)-1))
	if raw < float64(maxBackoff) { // false for +Inf too
		d = time.Duration(math.Round(raw))
	}
	return capThenJitter(d, s.Max, s.Jitter, f), true, nil
}

func (s Exponential) validate() error {
	var bad problems
	bad.nonNegative("Base", s.Base)
	if s.Multiplier != 0 && !(s.Multiplier >= 1 && s.Multiplier <= math.MaxFloat64) { // written so that NaN fails too
		bad.add("Multiplier", "%v is not a finite number of at least 1", s.Multiplier)
	}
	bad.nonNegative("Max", s.Max)
	bad.join(s.Jitter.validate())
	return bad.err()
}

func (s Exponential) stored() storedStrategy {
	s = s.filled()
	return storedStrategy{
		Type: "exponential", Base: durationText(s.Base), Multiplier: s.Multiplier, Max: durationText(s.Max),
		Jitter: s.Jitter.canonical(),
	}
}

// Linear waits Step × attempt after the attempt that failed: 60 s, 120 s, 180 s and so on.
type Linear struct {
	// Step is the wait after the first run, and how much longer each wait is than the wait before. Zero means 60 s;
	// negative is refused.
	Step time.Duration

	// Max bounds the wait before jitter. Zero means no bound; negative is refused.
	Max time.Duration

	// Jitter spreads the waits. Zero means NoJitter.
	Jitter Jitter
}

func (s Linear) filled() Linear {
	s.Step = cmp.Or(s.Step, 60*time.Second)
	s.Jitter = cmp.Or(s.Jitter, NoJitter)
	return s
}

func (s Linear) delay(f FailedRun) (time.Duration, bool, error) {
	s = s.filled()
	d, a := maxBackoff, time.Duration(max(f.Attempt, 1))
	if s.Step <= maxBackoff/a { // otherwise the product may overflow
		d = s.Step * a
	}
	return capThenJitter(d, s.Max, s.Jitter, f), true, nil
}

func (s Linear) validate() error {
	var bad problems
	bad.nonNegative("Step", s.Step)
	bad.nonNegative("Max", s.Max)
	bad.join(s.Jitter.validate())
	return bad.err()
}

func (s Linear) stored() storedStrategy {
	s = s.filled()
	return storedStrategy{Type: "linear", Step: durationText(s.Step), Max: boundText(s.Max), Jitter: s.Jitter.canonical()}
}

// Constant waits the same time after every failed attempt. Every is short for it.
type Constant struct {
	// Delay is the wait. Zero means 30 s. For practically no wait, set time.Nanosecond. Negative is refused.
	Delay time.Duration

	// Max bounds the wait before jitter. Zero means no bound; negative is refused.
	Max time.Duration

	// Jitter spreads the waits. Zero means NoJitter.
	Jitter Jitter
}

func (s Constant) filled() Constant {
	s.Delay = cmp.Or(s.Delay, 30*time.Second)
	s.Jitter = cmp.Or(s.Jitter, NoJitter)
	return s
}

func (s Constant) delay(f FailedRun) (time.Duration, bool, error) {
	s = s.filled()
	return capThenJitter(s.Delay, s.Max, s.Jitter, f), true, nil
}

func (s Constant) validate() error {
	var bad problems
	bad.nonNegative("Delay", s.Delay)
	bad.nonNegative("Max", s.Max)
	bad.join(s.Jitter.validate())
	return bad.err()
}

func (s Constant) stored() storedStrategy {
	s = s.filled()
	return storedStrategy{Type: "constant", Delay: durationText(s.Delay), Max: boundText(s.Max), Jitter: s.Jitter.canonical()}
}

// Custom asks a function of your application for each wait. If the function panics, drover logs that and uses
// Exponential{} instead, with the Max and Jitter of the Custom. If a single job names a Custom that its worker's
// process has not registered, drover logs that and uses the worker's strategy.
type Custom struct {
	// Name is how a single job refers to the strategy: up to 128 bytes of visible UTF-8. It may be empty if no job
	// refers to it.
	Name string

	// Func returns the wait. If it returns false, the retries stop and the job is discarded as unrecoverable. A negative
	// wait is 0. Workers call Func concurrently. Func may be nil if the worker's process has a Custom of this Name.
	Func func(FailedRun) (time.Duration, bool)

	// Max bounds the wait before jitter. Zero means no bound; negative is refused.
	Max time.Duration

	// Jitter spreads the waits. Zero means NoJitter.
	Jitter Jitter
}

func (s Custom) delay(f FailedRun) (time.Duration, bool, error) {
	d, ok, err := s.call(f)
	switch {
	case err != nil:
		d, ok, _ = Exponential{Max: s.Max, Jitter: s.Jitter}.delay(f)
		return d, ok, err
	case !ok:
		return 0, false, nil
	}
	return capThenJitter(d, s.Max, cmp.Or(s.Jitter, NoJitter), f), true, nil
}

// call calls Func, and recovers from its panic or its runtime.Goexit.
func (s Custom) call(f FailedRun) (d time.Duration, ok bool, err error) {
	if s.Func == nil {
		return 0, false, fmt.Errorf("%w: %q", errUnknownStrategy, s.Name)
	}
	f.Attempt = max(f.Attempt, 1)
	f.RetryIndex = f.Attempt - 1
	if why := guarded(func() { d, ok = s.Func(f) }); why != "" {
		return 0, false, fmt.Errorf("drover: custom retry strategy %q: %s", s.Name, why)
	}
	return d, ok, nil
}

func (s Custom) validate() error {
	var bad problems
	if s.Func == nil && s.Name == "" {
		bad.add("Func", "is nil, and there is no Name to find one by")
	}
	if s.Name != "" {
		bad.join(checkName("Name", s.Name))
	}
	bad.nonNegative("Max", s.Max)
	bad.join(s.Jitter.validate())
	return bad.err()
}

func (s Custom) stored() storedStrategy {
	out := storedStrategy{Type: "custom", Name: s.Name, Max: boundText(s.Max)}
	if s.Jitter != "" { // if it is unset, the Custom of that name decides
		out.Jitter = s.Jitter.canonical()
	}
	return out
}

// capThenJitter is the last step of every strategy. If the cap came after the jitter, all jobs at the cap would run
// again at the same moment.
func capThenJitter(d, limit time.Duration, j Jitter, f FailedRun) time.Duration {
	if f.noJitter {
		j = NoJitter
	}
	if limit > 0 {
		d = min(d, limit)
	}
	return j.apply(d, f.jobID(), f.Attempt)
}

// storedStrategy is the JSON form of a strategy, which users read and write, too. The columns named retry hold it as
// JSON, and drover_strategy_ok checks it.
type storedStrategy struct {
	Type       string  `json:"type"`
	Name       string  `json:"name,omitempty"`
	Base       string  `json:"base,omitempty"`
	Multiplier float64 `json:"multiplier,omitempty"`
	Step       string  `json:"step,omitempty"`
	Delay      string  `json:"delay,omitempty"`
	Max        string  `json:"max,omitempty"`
	Jitter     Jitter  `json:"jitter,omitempty"`
}

// encodeStrategy returns the JSON form of s. Defaults are filled in, so that people who read it see the
// values that apply. Nil means DefaultRetry. A refused setting, or a Custom without a name, is an *InvalidError.
func encodeStrategy(s RetryStrategy) ([]byte, error) {
	s = orDefault(s)
	if err := s.validate(); err != nil {
		return nil, err
	}
	out := s.stored()
	if out.Type == "custom" && out.Name == "" {
		return nil, &InvalidError{Field: "Name", Reason: "is empty; a stored Custom is found by it"}
	}
	return json.Marshal(out)
}

// ParseRetryStrategy reads a strategy from its JSON, in the form that the column jobs.retry holds. An example is
// {"type": "constant", "delay": "30s"}. Use it for command-line flags and files of settings. The result for a Custom
// has the name and no function, which is enough for EnqueueOpts.Retry and JobEdit.Retry. Errors: *InvalidError.
func ParseRetryStrategy(text string) (RetryStrategy, error) {
	var names struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal([]byte(text), &names) // decodeStrategy reports a mistake
	unbound := Custom{Name: names.Name, Func: func(FailedRun) (time.Duration, bool) { return 0, false }}
	s, err := decodeStrategy([]byte(text), map[string]Custom{names.Name: unbound})
	if err != nil {
		return nil, err
	}
	if custom, ok := s.(Custom); ok {
		custom.Func = nil
		s = custom
	}
	return s, s.validate()
}

// decodeStrategy reads the JSON form. A setting that is left out has its default. The parameter named has the Customs
// by name. If the text has a max or a jitter, they replace the Custom's own. If there is no Custom of the name, the
// error is errUnknownStrategy. Everything else that is not understood is an *InvalidError, because the strategy must
// not be guessed.
func decodeStrategy(raw []byte, named map[string]Custom) (RetryStrategy, error) {
	var in storedReader
	if err := json.Unmarshal(raw, &in.fields); err != nil {
		return nil, &InvalidError{Field: "retry", Reason: "is not a JSON object", Err: err}
	}
	var s RetryStrategy
	switch kind := in.text("type"); kind {
	case "exponential":
		s = Exponential{Base: in.duration("base"), Multiplier: in.multiplier(), Max: in.duration("max"), Jitter: in.jitter()}
	case "linear":
		s = Linear{Step: in.duration("step"), Max: in.duration("max"), Jitter: in.jitter()}
	case "constant":
		s = Constant{Delay: in.duration("delay"), Max: in.duration("max"), Jitter: in.jitter()}
	case "custom":
		s = in.custom(named)
	default:
		in.bad.add("retry.type", "%q is none of exponential, linear, constant, custom", kind)
		return nil, in.bad.err()
	}
	for _, key := range slices.Sorted(maps.Keys(in.fields)) {
		in.bad.add("retry."+key, "is not a setting of this type")
	}
	if err := in.bad.err(); err != nil {
		return nil, err
	}
	return s, nil
}

// storedReader takes fields out one by one. A field that is left at the end is unknown. Keys are compared exactly, as
// SQL does it; decoding into a struct would ignore their case.
type storedReader struct {
	fields map[string]json.RawMessage
	bad    problems
}

func (in *storedReader) take(key string, to any) (found bool) {
	raw, ok := in.fields[key]
	if !ok {
		return false
	}
	delete(in.fields, key)
	if err := json.Unmarshal(raw, to); err != nil {
		in.bad.add("retry."+key, "%s has the wrong type", raw)
		return false
	}
	return true
}

func (in *storedReader) text(key string) string {
	var s string
	if in.take(key, &s) && s == "" {
		in.bad.add("retry."+key, "is empty")
	}
	return s
}

func (in *storedReader) duration(key string) time.Duration {
	var s string
	if !in.take(key, &s) {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 { // a stored zero would mean the default
		in.bad.add("retry."+key, "%q is not a duration above 0, such as \"1m30s\"", s)
		return 0
	}
	return d
}

func (in *storedReader) multiplier() float64 {
	var x float64
	if in.take("multiplier", &x) && x < 1 {
		in.bad.add("retry.multiplier", "%v is not at least 1", x)
	}
	return x
}

func (in *storedReader) jitter() Jitter {
	j := Jitter(in.text("jitter"))
	if j != "" {
		if _, err := j.parse(); err != nil {
			in.bad.add("retry.jitter", "%v", err)
		}
	}
	return j
}

func (in *storedReader) custom(named map[string]Custom) Custom {
	name := in.text("name")
	s := named[name]
	s.Max, s.Jitter = cmp.Or(in.duration("max"), s.Max), cmp.Or(in.jitter(), s.Jitter)
	if s.Func == nil {
		in.bad.join(fmt.Errorf("%w: %q", errUnknownStrategy, name))
	}
	return s
}

// durationText is d in Go's form without its trailing zeros: "1h", not "1h0m0s".
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// boundText is the text of a bound, "" if there is none.
func boundText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return durationText(d)
}

// strategy checks a retry strategy; nil is the default.
func (p *problems) strategy(field string, s RetryStrategy) {
	switch s.(type) {
	case nil:
	case Exponential, Linear, Constant, Custom:
		p.at(field, s.validate())
	default:
		p.add(field, "%T is a pointer; strategies are values", s)
	}
}

// Jitter is the random share of a wait. It keeps jobs that failed together from running again together. Its text is
// "none", "full", "equal", "up:0.25", "down:0.25", "symmetric:0.1" or "abs:100ms", and is stored as it is. The zero
// value means the default of the strategy that contains it.
//
// A hash of the job's id and attempt picks a point in the range, evenly distributed. So the same job and attempt get
// the same wait in every process, and each job gets its own. A range includes its lower end, which is never below 0,
// and excludes its upper end.
type Jitter string

// The jitters without a setting. Full and equal jitter are described in Marc Brooker's "Exponential Backoff And Jitter"
// (AWS Architecture Blog, 2015).
const (
	NoJitter    Jitter = "none"  // the wait as computed
	FullJitter  Jitter = "full"  // from 0 to the whole wait: the widest spread, but some jobs run again almost immediately
	EqualJitter Jitter = "equal" // from half the wait to the whole wait
)

// JitterUp makes waits longer by up to share: JitterUp(0.25) turns 60 s into 60 s to 75 s. A share is 0 to 1.
func JitterUp(share float64) Jitter { return "up:" + shareText(share) }

// JitterDown makes waits shorter by up to share: JitterDown(0.25) turns 60 s into 45 s to 60 s. A share is 0 to 1.
func JitterDown(share float64) Jitter { return "down:" + shareText(share) }

// JitterSymmetric makes waits shorter or longer by up to share: JitterSymmetric(0.25) turns 60 s into 45 s to
// 75 s. A share is 0 to 1.
func JitterSymmetric(share float64) Jitter { return "symmetric:" + shareText(share) }

// JitterAbs makes waits shorter or longer by up to d, at most 100 years: JitterAbs(time.Second) turns 60 s into
// 59 s to 61 s, and 400 ms into 0 s to 1.4 s.
func JitterAbs(d time.Duration) Jitter { return "abs:" + Jitter(durationText(d)) }

func shareText(share float64) Jitter { return Jitter(strconv.FormatFloat(share, 'f', -1, 64)) }

// jitterRange is a parsed Jitter: how much shorter and longer it may make a wait, as shares of the wait and as
// a duration.
type jitterRange struct {
	below, above float64
	abs          time.Duration
}

// parse allocates nothing for a valid Jitter, because it runs at every failure.
func (j Jitter) parse() (r jitterRange, err error) {
	kind, amount, _ := strings.Cut(string(j), ":")
	switch {
	case j == NoJitter:
	case j == FullJitter:
		r.below = 1
	case j == EqualJitter:
		r.below = 0.5
	case kind == "up":
		r.above, err = parseShare(amount)
	case kind == "down":
		r.below, err = parseShare(amount)
	case kind == "symmetric":
		r.below, err = parseShare(amount)
		r.above = r.below
	case kind == "abs":
		r.abs, err = time.ParseDuration(amount)
		if err != nil || r.abs < 0 || r.abs > maxBackoff {
			err = errors.New("needs a duration from 0 to 100 years")
		}
	default:
		err = errors.New("is none of none, full, equal, up:0.25, down:0.25, symmetric:0.25, abs:100ms")
	}
	if err != nil {
		return jitterRange{}, fmt.Errorf("%q %w", string(j), err)
	}
	return r, nil
}

func parseShare(s string) (float64, error) {
	share, err := strconv.ParseFloat(s, 64)
	if err != nil || !(share >= 0 && share <= 1) { // written like this, NaN fails too
		return 0, errors.New("needs a share from 0 to 1")
	}
	return share, nil
}

func (j Jitter) validate() error {
	if j == "" {
		return nil
	}
	if _, err := j.parse(); err != nil {
		return &InvalidError{Field: "Jitter", Reason: err.Error()}
	}
	return nil
}

// canonical returns a valid j in the one spelling that the table's check accepts: "up:2.5e-1" becomes "up:0.25".
func (j Jitter) canonical() Jitter {
	r, err := j.parse()
	if err != nil {
		return j
	}
	switch kind, _, _ := strings.Cut(string(j), ":"); kind {
	case "up":
		return JitterUp(r.above)
	case "down":
		return JitterDown(r.below)
	case "symmetric":
		return JitterSymmetric(r.above)
	case "abs":
		return JitterAbs(r.abs)
	}
	return j
}

// apply returns the job's point in the range around d. A negative d counts as 0, and a d above maxBackoff as
// maxBackoff.
func (j Jitter) apply(d time.Duration, jobID string, attempt int) time.Duration {
	r, _ := j.parse() // it was validated when it was set; an invalid Jitter does not move d
	d = min(max(d, 0), maxBackoff)
	whole := float64(d)
	lo := max(0, d-time.Duration(r.below*whole)-r.abs) // whole may be rounded up, and then be more than d
	hi := d + time.Duration(r.above*whole) + r.abs
	offset, _ := bits.Mul64(jitterHash(jobID, attempt), uint64(hi-lo)) //nolint:gosec // hash / 2^64 × width, exactly; hi is not below lo
	return lo + time.Duration(offset)                                  //nolint:gosec // below hi - lo
}

// jitterHash is FNV-1a over id and attempt, followed by MurmurHash3's finalizer. Ids from the same millisecond differ
// only in their last characters, and FNV-1a alone would leave their upper bits similar. A change of this function
// changes the waits of every job, and every preview.
func jitterHash(id string, attempt int) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	h = (h ^ uint64(attempt)) * prime //nolint:gosec // a hash
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
