package meters

import (
	"strings"
	"sync"
)

// Other is the label that all names beyond the bound share.
const Other = "other"

// replacement is for what is not UTF-8.
const replacement = "\uFFFD"

// Names bounds how many values a label has: the first names that come keep theirs.
type Names struct {
	Most int

	mu   sync.RWMutex
	seen map[string]bool
}

// Label returns the value to use for a name. It is valid UTF-8: client_golang panics at anything else.
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
