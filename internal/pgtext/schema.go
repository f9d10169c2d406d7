package pgtext

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxIdentifier is the longest name in bytes, in a server with the default build options. Postgres cuts longer names,
// so two names may become the same.
const maxIdentifier = 63

// SchemaFault returns the reason why name cannot be the name of drover's schema, or "" if it can. Quotes, capitals,
// spaces and dots are allowed.
func SchemaFault(name string) string {
	switch {
	case strings.TrimSpace(name) == "":
		return "is blank"
	case len(name) > maxIdentifier:
		return fmt.Sprintf("%d bytes; at most %d", len(name), maxIdentifier)
	case !utf8.ValidString(name):
		return "invalid UTF-8"
	case strings.IndexByte(name, 0) >= 0:
		return fmt.Sprintf("NUL at byte %d", strings.IndexByte(name, 0))
	case name == "$user": // drover's functions set a search_path of their own
		return "in a search_path, it means the schema with the role's name"
	}
	return ""
}
