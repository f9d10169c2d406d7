package demo

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-queue/drover/internal/drive"
)

// The headers of a delivery.
const (
	headerKey       = "Idempotency-Key"
	headerJob       = "X-Drover-Job"
	headerAttempt   = "X-Drover-Attempt"
	headerSignature = "X-Signature"
)

// receiverSettings are what the parent sends to the receiver.
type receiverSettings struct {
	Secret string `json:"secret"`
	Quota  int    `json:"quota"`
	Outage bool   `json:"outage"` // outageCustomer's endpoint is down until comeBack
}

// receiverReady is the receiver's answer. The receiver removes the directory of the log when it ends.
type receiverReady struct {
	URL string `json:"url"`
	Log string `json:"log"`
}

// Receive is the program of the receiver: it plays every customer's endpoint on loopback until in ends.
func Receive(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	var s receiverSettings
	ctx, stop, err := childContext(ctx, in, &s)
	if err != nil {
		return err
	}
	defer stop()
	dir, err := os.MkdirTemp("", "drover-demo-")
	if err != nil {
		return fmt.Errorf("drover: receiver: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	log, err := os.OpenFile(filepath.Join(dir, "requests.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("drover: receiver: %w", err)
	}
	defer log.Close() //nolint:errcheck // each line is complete, or the receiver has answered its request with an error
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("drover: receiver: %w", err)
	}
	rc := &receiver{secret: s.Secret, log: log, world: world{quota: s.Quota}, now: time.Now}
	if s.Outage {
		rc.world.outage = &weakEndpoint{}
	}
	server := &http.Server{
		Handler:           rc,
		ReadHeaderTimeout: 10 * time.Second,
	}
	stopServing := context.AfterFunc(ctx, func() { server.Close() }) //nolint:errcheck // no client waits any more
	defer stopServing()
	if err := ready(out, receiverReady{URL: "http://" + listener.Addr().String(), Log: log.Name()}); err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("drover: receiver: %w", err)
	}
	return nil
}

// receiver answers requests as the type world decides. Before each answer it logs the request with one write. So it has
// not accepted a request that is not in the log.
type receiver struct {
	secret string
	now    func() time.Time

	mu    sync.Mutex
	world world
	open  map[string]int // how many requests of each customer are unanswered
	log   io.Writer
}

// ServeHTTP implements http.Handler.
func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "body: "+err.Error(), http.StatusBadRequest)
		return
	}
	attempt, _ := strconv.Atoi(r.Header.Get(headerAttempt)) // 0 if it is not a number
	customer, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if r.Method == http.MethodPut {
		w.WriteHeader(rc.comeBack(r.Header.Get(headerSignature), body))
		return
	}
	req := request{
		At: rc.now().UTC(), Key: r.Header.Get(headerKey), Customer: customer, Job: r.Header.Get(headerJob), Attempt: attempt,
		Signed: hmac.Equal([]byte(r.Header.Get(headerSignature)), []byte(signature(rc.secret, body))),
	}
	a := rc.answer(&req)
	if drive.Pause(r.Context(), a.after) != nil {
		a.status = 0 // the sender gave up, so it gets no answer
	}
	req.Status, req.Fell = a.status, a.fell
	if err := rc.record(req); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	a.write(w)
}

// answer returns the answer to a request, and counts the request as open until the call of record.
func (rc *receiver) answer(req *request) answer {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.open == nil {
		rc.open = map[string]int{}
	}
	rc.open[req.Customer]++
	req.AtOnce = rc.open[req.Customer]
	if !req.Signed {
		return answer{status: http.StatusUnauthorized, body: "the signature does not fit the body"}
	}
	return rc.world.answer(req.Customer, req.Key, req.AtOnce, req.At)
}

// record logs the request and counts it as closed. The caller sends the answer after that. So this request is not
// counted as open any more when the sender's next request comes.
func (rc *receiver) record(req request) error {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.open[req.Customer]--
	line, err := json.Marshal(req)
	if err != nil {
		return err
	}
	_, err = rc.log.Write(append(line, '\n'))
	return err
}

// comeBack ends the outage: from now on the endpoint is weak.
func (rc *receiver) comeBack(sig string, body []byte) (status int) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	switch {
	case !hmac.Equal([]byte(sig), []byte(signature(rc.secret, body))):
		return http.StatusUnauthorized
	case rc.world.outage == nil:
		return http.StatusNotFound
	}
	rc.world.outage.up = true
	return http.StatusNoContent
}

func (a answer) write(w http.ResponseWriter) {
	if a.status == 0 {
		breakOff(w)
		return
	}
	if a.retryAfter != "" {
		w.Header().Set("Retry-After", a.retryAfter)
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body) // if the sender is gone, it will try again
}

// breakOff closes the connection in the middle of the status line.
func breakOff(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // this closes the connection too, but sends no half line
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 20")
	_ = conn.Close()
}

// signature returns the value of the header that proves the origin of a body.
func signature(secret string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}
