package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// requestLog passes every line to the test, and counts the writes.
type requestLog chan request

func (l requestLog) Write(line []byte) (int, error) {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return 0, err
	}
	l <- r
	return len(line), nil
}

func startReceiver(t *testing.T) (url string, log requestLog) {
	t.Helper()
	return startReceiverOf(t, world{quota: 1})
}

func startReceiverOf(t *testing.T, w world) (url string, log requestLog) {
	t.Helper()
	log = make(requestLog, 10)
	at := time.Now() // the clock stands still: quotas count requests, not the time between them
	server := httptest.NewServer(&receiver{secret: "secret", log: log, world: w, now: func() time.Time { return at }})
	t.Cleanup(server.Close)
	return server.URL, log
}

func send(ctx context.Context, t *testing.T, url, key, sig, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(headerKey, key)
	req.Header.Set(headerJob, "01JOB")
	req.Header.Set(headerAttempt, "3")
	req.Header.Set(headerSignature, sig)
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		t.Cleanup(func() { _ = resp.Body.Close() }) // it was only read
	}
	return resp, err
}

func TestReceiverAnswersAndWritesDown(t *testing.T) {
	t.Parallel()
	const body = `{"id":"evt-000001"}`
	good := signature("secret", []byte(body))
	for _, test := range []struct {
		name, path, sig string
		status          int
		signed          bool
	}{
		{"well", "/customer-aurora/hooks/a%20b", good, 200, true},
		{"gone", "/customer-fjord/hooks", good, 410, true},
		{"down", "/customer-dune/hooks", good, 500, true},
		{"another secret", "/customer-aurora/hooks", signature("other", []byte(body)), 401, false},
		{"another body", "/customer-aurora/hooks", signature("secret", []byte(body+" ")), 401, false},
		{"no signature", "/customer-aurora/hooks", "", 401, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url, log := startReceiver(t)
			resp, err := send(t.Context(), t, url+test.path, "evt-000001", test.sig, body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != test.status {
				t.Errorf("status %d, want %d", resp.StatusCode, test.status)
			}
			got := <-log
			customer, _, _ := strings.Cut(test.path[1:], "/")
			want := request{At: got.At, Key: "evt-000001", Customer: customer, Job: "01JOB", Attempt: 3, Status: test.status, Signed: test.signed, AtOnce: 1}
			if got != want || got.At.IsZero() {
				t.Errorf("log %+v, want %+v", got, want)
			}
		})
	}
}

func TestReceiverThrottlesWithRetryAfter(t *testing.T) {
	t.Parallel()
	url, _ := startReceiver(t)
	sig := signature("secret", nil)
	if resp, err := send(t.Context(), t, url+"/customer-ember/x", "a", sig, ""); err != nil || resp.StatusCode != 200 {
		t.Fatalf("first: %v, %v; want 200", resp, err)
	}
	resp, err := send(t.Context(), t, url+"/customer-ember/x", "b", sig, "")
	if err != nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "1" {
		t.Fatalf("second: %v, %v; want 429 with Retry-After 1", resp, err)
	}
}

func TestReceiverBreaksOffInTheMiddle(t *testing.T) {
	t.Parallel()
	url, log := startReceiver(t)
	resp, err := send(t.Context(), t, url+"/customer-grove/x", keyWith(t, 3, 0), signature("secret", nil), "")
	if err == nil {
		t.Fatalf("got %s, want half an answer", resp.Status)
	}
	if got := <-log; got.Status != 0 {
		t.Errorf("log says %d, want 0", got.Status)
	}
}

// A sender that gives up gets no answer. If the receiver counted an effect, a later attempt would count it twice.
func TestReceiverHasNoEffectOnASenderThatGaveUp(t *testing.T) {
	t.Parallel()
	log := make(requestLog, 10)
	r := &receiver{secret: "secret", log: log, world: world{quota: 1}, now: time.Now}
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		giveUp() // after the request has arrived, because an earlier one would never be logged
		r.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	resp, err := send(ctx, t, server.URL+"/customer-cobalt/x", keyWith(t, 8, 0), signature("secret", nil), "")
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, %v; want no answer in time", resp, err)
	}
	if got := <-log; got.Status != 0 {
		t.Errorf("log says %d, want 0", got.Status)
	}
}

type brokenLog struct{}

func (brokenLog) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// A request that cannot be logged must not be accepted.
func TestReceiverThatCannotWriteDownRefuses(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	rc := &receiver{secret: "secret", log: brokenLog{}, now: time.Now}
	req := httptest.NewRequest(http.MethodPost, "/customer-aurora/x", bytes.NewReader(nil))
	req.Header.Set(headerSignature, signature("secret", nil))
	rc.ServeHTTP(rec, req)
	if body, _ := io.ReadAll(rec.Body); rec.Code != 500 || !bytes.Contains(body, []byte("disk full")) {
		t.Errorf("answered %d %s, want 500 disk full", rec.Code, body)
	}
}
