package engine

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover/internal/store"
)

// Which runs that this process knows keep a job that runs in its name from being released.
func TestWhichRunsKeepAJob(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	row := pgtype.Timestamptz{Time: at, Valid: true}
	infinite := pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.Infinity}
	for name, tc := range map[string]struct {
		row         pgtype.Timestamptz
		claims      []time.Time // of the known runs
		other       bool        // the runs are of another job
		audit, lost bool        // whether the job is kept
	}{
		"no run":                     {row, nil, false, false, false},
		"another job's":              {row, []time.Time{at}, true, false, false},
		"the same claim":             {row, []time.Time{at}, false, true, true},
		"the same, in another zone":  {row, []time.Time{at.In(time.FixedZone("east", 3600))}, false, true, true},
		"a later claim":              {row, []time.Time{at.Add(time.Microsecond)}, false, true, true},
		"a deaf handler's":           {row, []time.Time{at.Add(-time.Microsecond)}, false, true, false},
		"two deaf handlers'":         {row, []time.Time{at.Add(-2 * time.Hour), at.Add(-time.Hour)}, false, true, false},
		"a later and a deaf one":     {row, []time.Time{at.Add(time.Hour), at.Add(-time.Hour)}, false, true, true},
		"a deaf and a later one":     {row, []time.Time{at.Add(-time.Hour), at.Add(time.Hour)}, false, true, true},
		"no time of a claim":         {pgtype.Timestamptz{}, []time.Time{at}, false, true, true},
		"neither has a time":         {pgtype.Timestamptz{}, []time.Time{{}}, false, true, true},
		"no time, and unknown":       {pgtype.Timestamptz{}, nil, false, false, false},
		"claimed at infinity":        {infinite, []time.Time{at}, false, true, true},
		"at infinity, and not known": {infinite, nil, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs []*Run
			for _, claimed := range tc.claims {
				r := &Run{Fence: store.Fence{ID: "job", ClaimedAt: claimed}}
				if tc.other {
					r.ID = "other"
				}
				runs = append(runs, r)
			}
			j, known := &store.Held{ID: "job", AttemptedAt: tc.row}, latestClaims(runs)
			if got := mayBeAtWork(known, j, false); got != tc.audit {
				t.Errorf("in an audit: kept %v", got)
			}
			if got := mayBeAtWork(known, j, true); got != tc.lost {
				t.Errorf("after a lost claim: kept %v", got)
			}
		})
	}
}
