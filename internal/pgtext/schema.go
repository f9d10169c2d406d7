package pgtext

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxIdentifier is how long a name may be in a server that was compiled as usual. Postgres cuts longer names, so two of
// them may become one.
const maxIdentifier = 63

// SchemaFault says why name cannot be the name of drover's schema; "" if it can. Quotes, capitals, spaces and dots may.
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
	case name == "$user": // drover's functions pin a search_path
		return "in a search_path, it means the schema with the role's name"
	}
	return ""
}
