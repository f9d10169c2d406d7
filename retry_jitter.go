package drover

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

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
	FullJitter  Jitter = "full"  // 0 to the wait: the widest spread, but some jobs run again almost immediately
	EqualJitter Jitter = "equal" // half the wait to the wait
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

// jitterRange is a parsed Jitter: how far below and above a wait it reaches, as shares of it and as a duration.
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

// apply returns the job's point in the range around d. A negative d counts as 0, one above maxBackoff as maxBackoff.
func (j Jitter) apply(d time.Duration, jobID string, attempt int) time.Duration {
	r, _ := j.parse() // it was validated when it was set; an invalid one does not move d
	d = min(max(d, 0), maxBackoff)
	whole := float64(d)
	lo := max(0, d-time.Duration(r.below*whole)-r.abs) // whole may be rounded up
	hi := d + time.Duration(r.above*whole) + r.abs
	offset, _ := bits.Mul64(jitterHash(jobID, attempt), uint64(hi-lo)) //nolint:gosec // hash / 2^64 × width, exactly; hi is not below lo
	return lo + time.Duration(offset)                                  //nolint:gosec // below hi - lo
}

// jitterHash is FNV-1a over id and attempt, followed by MurmurHash3's finalizer. Ids from the same millisecond differ
// only in their last characters, and FNV-1a alone would leave their upper bits similar. Changing it changes every
// preview.
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
