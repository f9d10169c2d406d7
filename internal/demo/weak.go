package demo

import (
	"net/http"
	"time"
)

// outageCustomer is the customer whose endpoint has the outage.
const outageCustomer = "customer-kestrel"

// The limits of a weak endpoint. If a request exceeds one of them, the endpoint falls over, like an overloaded server.
const (
	weakRate   = 120 // requests in any second
	weakAtOnce = 8
	fallenFor  = 3 * time.Second
)

// weakEndpoint is down until up is set. After that it serves only a few requests at a time. Like the type world, it
// reads no clock.
type weakEndpoint struct {
	up          bool
	recent      []time.Time // the times of the requests within the last second; the oldest is the first
	fallenUntil time.Time
}

func (e *weakEndpoint) answer(key string, atOnce int, now time.Time) answer {
	soon := time.Duration(3+hash(key)%8) * time.Millisecond
	if !e.up {
		return answer{after: soon, status: http.StatusInternalServerError, body: "the database is down"}
	}
	for len(e.recent) > 0 && now.Sub(e.recent[0]) >= time.Second {
		e.recent = e.recent[1:]
	}
	e.recent = append(e.recent, now)
	overloaded := answer{after: soon, status: http.StatusServiceUnavailable, body: "overloaded, starting again"}
	switch {
	case now.Before(e.fallenUntil):
		return overloaded
	case len(e.recent) > weakRate || atOnce > weakAtOnce:
		e.fallenUntil = now.Add(fallenFor)
		overloaded.fell = true
		return overloaded
	}
	return answer{after: time.Duration(10+hash(key)%20) * time.Millisecond, status: http.StatusOK, body: `{"received":true}`}
}
