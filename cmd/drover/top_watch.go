package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// topSource is the database of "drover top".
type topSource interface {
	lookTop(ctx context.Context) (*topLook, error)
	changeQueue(ctx context.Context, act topAction) error
}

// changeQueue pauses or resumes a queue.
func (s *session) changeQueue(ctx context.Context, act topAction) error {
	if act.pause {
		return s.client.Pause(ctx, "queue:"+act.queue, time.Time{}, act.by)
	}
	return s.client.Resume(ctx, "queue:"+act.queue, act.by)
}

const (
	lookPatience = 10 * time.Second       // a look that takes longer has failed
	refreshEvery = 250 * time.Millisecond // how soon a new size, and the age of the last look, are shown
)

// topWatch runs the screen: it hands looks, keys and ticks to the model, and shows what comes out. The model belongs to
// the goroutine of watchTop alone.
type topWatch struct {
	source  topSource
	screen  *screen
	model   *topModel
	events  chan func(*topModel)
	looking bool
	again   bool // look once more after the look under way, which may have missed a change
	started sync.WaitGroup
}

// watchTop shows the screen until q, Ctrl-C or the end of ctx. The terminal is given back whatever happens, a panic
// included; only then does it wait for what it started, which ends with ctx.
//
//	look, change  at most 1 of each  end with their statement, or with ctx
//	keys          1                  stays behind: nothing can interrupt a read from a terminal
func watchTop(ctx context.Context, source topSource, s *screen, m *topModel) error {
	w := &topWatch{source: source, screen: s, model: m, events: make(chan func(*topModel), 2)}
	defer w.started.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	keys := make(chan []byte)
	go w.keys(ctx, keys)
	return w.run(ctx, keys)
}

func (w *topWatch) run(ctx context.Context, keys <-chan []byte) error {
	looks := time.NewTicker(w.model.options.every)
	defer looks.Stop()
	refresh := time.NewTicker(refreshEvery)
	defer refresh.Stop()
	w.look(ctx)
	var rest []byte
	for !w.model.done {
		if err := w.draw(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event := <-w.events:
			event(w.model)
		case raw := <-keys:
			rest = w.typed(ctx, append(rest, raw...))
		case <-looks.C:
			w.look(ctx)
		case <-refresh.C:
		}
	}
	if w.model.busy != "" {
		return fmt.Errorf("left before this was done: %s. To see whether it is in effect: drover limits", w.model.busy)
	}
	return nil
}

// draw fits the model to the terminal's size of now.
func (w *topWatch) draw() error {
	width, height, err := w.screen.size()
	if err != nil {
		return err
	}
	w.model.tick(time.Now())
	w.model.resize(width, height)
	return w.screen.draw(w.model.screen())
}

// typed hands keys to the model, and does what they ask for.
func (w *topWatch) typed(ctx context.Context, raw []byte) (rest []byte) {
	keys, rest := readKeys(raw)
	for _, k := range keys {
		if act := w.model.key(k); act != nil {
			w.begin(ctx, func() func(*topModel) {
				err := w.source.changeQueue(ctx, *act)
				return func(m *topModel) {
					m.acted(*act, err)
					w.again = w.looking
					w.look(ctx)
				}
			})
		}
		if k == keySpace && w.model.ask == nil {
			w.look(ctx)
		}
	}
	return rest
}

// look begins a look, unless one is under way.
func (w *topWatch) look(ctx context.Context) {
	if w.looking {
		return
	}
	w.looking = true
	w.begin(ctx, func() func(*topModel) {
		short, cancel := context.WithTimeout(ctx, lookPatience)
		defer cancel()
		l, err := w.source.lookTop(short)
		return func(m *topModel) {
			w.looking = false
			if err != nil {
				m.missed(err, time.Now())
			} else {
				m.look(l, time.Now())
			}
			if w.again {
				w.again = false
				w.look(ctx)
			}
		}
	})
}

// begin runs something beside the screen. A panic in it goes on in the goroutine of the screen, which gives the terminal
// back first.
func (w *topWatch) begin(ctx context.Context, do func() func(*topModel)) {
	w.started.Go(func() {
		var event func(*topModel)
		defer func() {
			if v := recover(); v != nil {
				text := fmt.Sprintf("%v\n\n%s", v, debug.Stack())
				event = func(*topModel) { panic(text) }
			}
			select {
			case w.events <- event:
			case <-ctx.Done():
			}
		}()
		event = do()
	})
}

// keys reads what is typed. A terminal that is gone is the same as Ctrl-C.
func (w *topWatch) keys(ctx context.Context, to chan<- []byte) {
	for {
		buf := make([]byte, 256)
		n, err := w.screen.in.Read(buf)
		if err != nil {
			buf, n = []byte{3}, 1
		}
		select {
		case to <- buf[:n]:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}
