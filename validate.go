package drover

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// problems gathers all mistakes, so that one error reports them together.
type problems struct{ errs []error }

func (p *problems) add(field, format string, args ...any) {
	p.errs = append(p.errs, &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

func (p *problems) join(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

// at joins err, with its fields put below field: "Base" becomes "Workers[0].Retry.Base".
func (p *problems) at(field string, err error) {
	var invalid *InvalidError
	switch joined, ok := err.(interface{ Unwrap() []error }); {
	case err == nil:
	case ok:
		for _, e := range joined.Unwrap() {
			p.at(field, e)
		}
	case errors.As(err, &invalid):
		p.errs = append(p.errs, &InvalidError{Field: field + "." + invalid.Field, Reason: invalid.Reason, Err: invalid.Err})
	default:
		p.errs = append(p.errs, &InvalidError{Field: field, Reason: err.Error(), Err: err})
	}
}

func (p *problems) err() error {
	if len(p.errs) == 1 {
		return p.errs[0]
	}
	return errors.Join(p.errs...)
}

// nonNegative reports a negative duration.
func (p *problems) nonNegative(field string, d time.Duration) {
	if d < 0 {
		p.add(field, "%v is negative", d)
	}
}

// atLeast reports a duration that is set and shorter than least. The usual mistake is a number without its unit.
func (p *problems) atLeast(field string, d, least time.Duration) {
	if d != 0 && d < least {
		p.add(field, "%v is under %v", d, least)
	}
}

// leastTimeout is the shortest Timeout, because the table counts milliseconds.
const leastTimeout = time.Millisecond

// attempts checks a number of runs; 0 means unset.
func (p *problems) attempts(field string, n int) {
	switch {
	case n < 0:
		p.add(field, "%d is negative; 1 means never retry", n)
	case n > math.MaxInt32:
		p.add(field, "%d is more than %d", n, math.MaxInt32)
	}
}
