package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// request is one line of the receiver's log.
type request struct {
	At       time.Time `json:"at"`
	Key      string    `json:"key"`
	Customer string    `json:"customer"`
	Job      string    `json:"job"`
	Attempt  int       `json:"attempt"`
	Status   int       `json:"status"`         // 0 means no answer
	Signed   bool      `json:"signed"`         // the signature matches the body
	AtOnce   int       `json:"at_once"`        // how many requests were open at the customer's endpoint, with this one
	Fell     bool      `json:"fell,omitempty"` // the endpoint fell over because of this request
}

// Tally has counts of the requests that the receiver got.
type Tally struct {
	Requests int
	Accepted int      // how many events were answered with 2xx
	Twice    int      // how many events were answered with 2xx more than once
	Refused  int      // how many events were refused for good, with 410
	Lost     []string // keys of expected events that were neither accepted nor refused
	Unknown  int      // how many requests were for events that were not enqueued
	Unsigned int      // how many requests had a signature that did not match the body
	Statuses map[int]int
}

// readLog reads the receiver's log. A line that cannot be parsed is an error, because an incomplete log proves nothing.
func readLog(log io.Reader) (requests []request, err error) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("drover: receiver's log, line %d: %w", len(requests)+1, err)
		}
		requests = append(requests, r)
	}
	return requests, lines.Err()
}

// tally compares the receiver's log with the events that the receiver should have seen. An event is accepted if the receiver
// answered 2xx to a request with a good signature, and refused if it answered 410.
func tally(log []request, expected []event) Tally {
	accepted, refused := map[string]int{}, map[string]bool{}
	known := make(map[string]bool, len(expected))
	for _, e := range expected {
		known[e.key] = true
	}
	t := Tally{Requests: len(log), Statuses: map[int]int{}}
	for _, r := range log {
		t.Statuses[r.Status]++
		switch {
		case !known[r.Key]:
			t.Unknown++
		case !r.Signed:
			t.Unsigned++
		case r.Status/100 == 2:
			accepted[r.Key]++
		case r.Status == http.StatusGone:
			refused[r.Key] = true
		}
	}
	for _, e := range expected {
		switch {
		case accepted[e.key] > 0:
			t.Accepted++
			if accepted[e.key] > 1 {
				t.Twice++
			}
		case refused[e.key]:
			t.Refused++
		default:
			t.Lost = append(t.Lost, e.key)
		}
	}
	return t
}
