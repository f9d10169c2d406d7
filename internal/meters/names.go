package meters

import (
	"strings"
	"sync"
)

// Other is the label that all names after the first Names.Most share.
const Other = "other"

// replacement replaces bytes that are not valid UTF-8.
const replacement = "\uFFFD"

// Names bounds how many values a label has. The first Most names keep their own values, and all later names share
// Other.
type Names struct {
	Most int

	mu   sync.RWMutex
	seen map[string]bool
}

// Label returns the value to use for a name. The value is valid UTF-8, because client_golang panics otherwise.
func (n *Names) Label(name string) string {
	n.mu.RLock()
	seen, full := n.seen[name], len(n.seen) >= n.Most
	n.mu.RUnlock()
	switch {
	case seen || name == "":
		return name
	case full:
		return Other
	}
	name = strings.ToValidUTF8(name, replacement)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.seen[name] && len(n.seen) >= n.Most {
		return Other
	}
	if n.seen == nil {
		n.seen = map[string]bool{}
	}
	n.seen[name] = true
	return name
}
