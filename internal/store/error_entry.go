package store

import "time"

// InMillis returns a duration in milliseconds, with three decimals for the microseconds.
func InMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// ErrorEntry is one element of the column errors.
type ErrorEntry struct {
	Attempt     int     `json:"attempt"`
	ClaimSeq    int     `json:"claim_seq"`
	At          string  `json:"at,omitempty"` // set by the database
	Class       string  `json:"class"`
	Case        string  `json:"case,omitempty"`
	Error       string  `json:"error"`
	Type        string  `json:"type,omitempty"`
	Fingerprint string  `json:"fingerprint,omitempty"`
	DurationMS  float64 `json:"duration_ms"` // as InMillis returns it
	DelayMS     int64   `json:"delay_ms,omitempty"`
	Supervisor  string  `json:"supervisor"`
	Host        string  `json:"host,omitempty"`   // host and process id of a process that died
	Beside      *int    `json:"beside,omitempty"` // how many other jobs had started in a process that died
	Spared      string  `json:"spared,omitempty"` // why the death does not count against the job
	Trace       string  `json:"trace,omitempty"`
}
