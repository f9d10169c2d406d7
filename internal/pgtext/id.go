package pgtext

import "github.com/oklog/ulid/v2"

// ID returns the id of a job or a redrive as the tables have it. Upper and lower case are the same in a ULID, and the
// tables have it in capitals. An id that is no ULID stays as it is.
func ID(id string) string {
	if parsed, err := ulid.ParseStrict(id); err == nil {
		return parsed.String()
	}
	return id
}
