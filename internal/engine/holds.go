package engine

import (
	"maps"
	"slices"
	"strings"

	"github.com/drover-queue/drover/internal/store"
)

// holds is the set of the paused scopes: their jobs may not start now, as far as this process knows. It is never
// changed in place. A nil *holds is an empty set.
type holds struct {
	all    bool
	queues map[string]bool
	kinds  map[string]bool
	open   []string // the kinds of this supervisor that are not held
}

// newHolds returns the scopes that the limits pause; nil if there is none.
func newHolds(limits []store.Limit, kinds []string) *holds {
	h := &holds{queues: map[string]bool{}, kinds: map[string]bool{}}
	for _, l := range limits {
		if !l.Held {
			continue
		}
		switch what, name, _ := strings.Cut(l.Scope, ":"); what {
		case store.ScopeAll:
			h.all = true
		case "queue":
			h.queues[name] = true
		case "kind":
			h.kinds[name] = true
		}
	}
	if !h.all && len(h.queues)+len(h.kinds) == 0 {
		return nil
	}
	h.open = slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return h.kinds[kind] })
	return h
}

// holdsQueue reports whether the holds keep every job of the queue from starting here.
func (h *holds) holdsQueue(name string) bool {
	return h != nil && (h.all || h.queues[name] || len(h.open) == 0)
}

// holdsJob reports whether the holds keep jobs of the queue and kind from starting.
func (h *holds) holdsJob(queue, kind string) bool {
	return h != nil && (h.all || h.queues[queue] || h.kinds[kind])
}

// frees reports whether a kind that is paused in h is not paused in next.
func (h *holds) frees(next *holds) bool {
	if h == nil {
		return false
	}
	for kind := range h.kinds {
		if next == nil || !next.kinds[kind] {
			return true
		}
	}
	return false
}

// same reports whether h and other have the same scopes.
func (h *holds) same(other *holds) bool {
	if h == nil || other == nil {
		return h == other
	}
	return h.all == other.all && maps.Equal(h.queues, other.queues) && maps.Equal(h.kinds, other.kinds)
}
