package demo

import (
	"hash/fnv"
	"net/http"
	"time"
)

// behaviour is how a customer's endpoint answers.
type behaviour string

const (
	well      behaviour = "well"      // answers 200 soon
	slow      behaviour = "slow"      // answers 200 after 250 to 700 ms; one event in eight gets no answer the first time
	down      behaviour = "down"      // answers 500 for a while after the first request, and then behaves well
	throttled behaviour = "throttled" // answers 200 within a quota for each second, and otherwise 429 with Retry-After
	gone      behaviour = "gone"      // answers 410 to every request
	garbled   behaviour = "garbled"   // breaks the connection or answers garbage the first times, and then behaves well
)

const (
	downFor  = 5 * time.Second  // how long an endpoint is down
	hanging  = 20 * time.Second // longer than any worker waits
	quotaFor = time.Second      // the period of a throttled endpoint's quota
)

// behaviourOf returns a fixed behaviour for the customers of the built-in file. The behaviour of another customer
// depends on its name, and is one with which its deliveries arrive in the end.
func behaviourOf(customer string) behaviour {
	switch customer {
	case "customer-aurora", "customer-birch", "customer-harbor":
		return well
	case "customer-cobalt":
		return slow
	case "customer-dune":
		return down
	case "customer-ember":
		return throttled
	case "customer-fjord":
		return gone
	case "customer-grove":
		return garbled
	}
	others := [...]behaviour{well, slow, down, throttled, garbled}
	return others[hash(customer)%uint32(len(others))]
}

func hash(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

// world is the state of all endpoints. It reads no clock and is not safe for concurrent use.
type world struct {
	quota     int           // how many deliveries a second a throttled endpoint accepts
	outage    *weakEndpoint // the endpoint of outageCustomer; nil if there is no outage
	customers map[string]*endpoint
}

type endpoint struct {
	since  time.Time      // the time of the first request
	window time.Time      // when the present period of the quota began
	used   int            // how many requests of this period were accepted
	seen   map[string]int // how many requests each key has had
}

// answer is how an endpoint answers a request. With status 0, the endpoint closes the connection in the middle of the
// answer.
type answer struct {
	after      time.Duration
	status     int
	retryAfter string
	body       string
	fell       bool // the endpoint fell over because of this request
}

// answer returns the answer to a request. atOnce is the number of open requests at the customer's endpoint.
func (w *world) answer(customer, key string, atOnce int, now time.Time) answer {
	if w.outage != nil && customer == outageCustomer {
		return w.outage.answer(key, atOnce, now)
	}
	e := w.endpoint(customer, now)
	e.seen[key]++
	soon := time.Duration(3+hash(key)%20) * time.Millisecond
	fine := answer{after: soon, status: http.StatusOK, body: `{"received":true}`}
	switch behaviourOf(customer) {
	case slow:
		fine.after = time.Duration(250+hash(key)%450) * time.Millisecond
		if hash(key)%8 == 0 && e.seen[key] == 1 {
			fine.after = hanging
		}
	case down:
		if now.Sub(e.since) < downFor {
			return answer{after: soon, status: http.StatusInternalServerError, body: "the database is being restored, come back later"}
		}
	case throttled:
		if !e.allows(w.quota, now) {
			return answer{after: soon, status: http.StatusTooManyRequests, retryAfter: "1", body: "too many requests"}
		}
	case gone:
		return answer{after: soon, status: http.StatusGone, body: "this endpoint was removed"}
	case garbled:
		switch {
		case hash(key)%3 == 0 && e.seen[key] == 1:
			return answer{after: soon}
		case hash(key)%3 == 1 && e.seen[key] <= 2:
			return answer{after: soon, status: http.StatusBadGateway, body: "\x00\xff\xfe<html>\x1b[31m\xc3(502"}
		}
	case well:
	}
	return fine
}

func (w *world) endpoint(customer string, now time.Time) *endpoint {
	if w.customers == nil {
		w.customers = map[string]*endpoint{}
	}
	e := w.customers[customer]
	if e == nil {
		e = &endpoint{since: now, window: now, seen: map[string]int{}}
		w.customers[customer] = e
	}
	return e
}

func (e *endpoint) allows(quota int, now time.Time) bool {
	if now.Sub(e.window) >= quotaFor {
		e.window, e.used = now, 0
	}
	if e.used >= quota {
		return false
	}
	e.used++
	return true
}

// quotaOf returns a quota with which the events of a throttled customer take about five seconds, whatever their number
// is.
func quotaOf(list []event) int {
	most, counts := 0, map[string]int{}
	for _, e := range list {
		if behaviourOf(e.Customer) == throttled {
			counts[e.Customer]++
			most = max(most, counts[e.Customer])
		}
	}
	return max(1, (most+4)/5)
}
