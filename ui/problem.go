package ui

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
)

// problem is an error as a person sees it: one sentence says what is wrong, and another says what to do.
type problem struct {
	Status   int
	What, Do string
	Back     string // address of a page that the person should look at; "" for none
	Field    string // for the API: the field of the request that is wrong; "" if no field is wrong
	Result   any    // for the API: the part of the request that was done before the error
}

func (p problem) Error() string { return p.What }

// problemOf turns an error into a problem. The text of an unknown error stays in the log, because it may quote
// addresses and users.
func problemOf(err error) problem {
	var p problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, drover.ErrInvalid):
		return problem{Status: http.StatusBadRequest, What: invalid(err), Do: "Change the address or the form, and send it again."}
	case errors.Is(err, drover.ErrArchived):
		return problem{Status: http.StatusNotFound, What: "The job with this id is in the archive.", Do: "drover archive export --id ID shows it, and drover archive restore ID brings it back."}
	case errors.Is(err, drover.ErrNotFound):
		return problem{Status: http.StatusNotFound, What: "There is none with this id.", Do: "It may have been deleted since: look for it in the list."}
	case errors.Is(err, drover.ErrState):
		return problem{Status: http.StatusConflict, What: refused(err), Do: "Nothing was changed. Look at it as it is now."}
	case errors.Is(err, drover.ErrNotMigrated):
		return problem{Status: http.StatusServiceUnavailable, What: "The database has no tables of drover, or those of an older version.", Do: "Run drover migrate up."}
	case errors.Is(err, drover.ErrReadOnly):
		return problem{Status: http.StatusServiceUnavailable, What: "The server of the database accepts no writes, such as a standby.", Do: "Connect the application to the primary."}
	case errors.Is(err, drover.ErrServerTooOld), errors.Is(err, drover.ErrPooler):
		return problem{Status: http.StatusServiceUnavailable, What: sentence(err.Error()), Do: "Change the server or the connection string."}
	case errors.Is(err, context.DeadlineExceeded):
		return problem{Status: http.StatusGatewayTimeout, What: "The database did not answer in time.", Do: "Try again, narrow the filter, or run drover health to see what holds it up."}
	}
	return ofDatabase(err)
}

// ofDatabase distinguishes a database that cannot be reached from other errors.
func ofDatabase(err error) problem {
	away := problem{Status: http.StatusServiceUnavailable, What: "The database cannot be reached.", Do: "Check that it runs and accepts connections; the log has the details."}
	var network net.Error
	switch code := pg.SQLState(err); {
	case code != "":
		switch {
		case code == "42501":
			return problem{Status: http.StatusServiceUnavailable, What: "The application's role may not read drover's tables.", Do: "Give it the rights of the reader in docs/roles.sql."}
		case code == "42P01" || code == "42703" || code == "42883":
			return problemOf(drover.ErrNotMigrated)
		case code == "57014" || code == "55P03":
			return problem{Status: http.StatusGatewayTimeout, What: "The database gave up on this, because it took too long.", Do: "Narrow the filter, or run drover health to see what holds it up."}
		case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "28"), strings.HasPrefix(code, "3D"), strings.HasPrefix(code, "53"), strings.HasPrefix(code, "57P"):
			return away
		}
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return away
	case strings.HasSuffix(err.Error(), "closed pool"):
		return problem{Status: http.StatusServiceUnavailable, What: "The application is stopping, and has closed its connections.", Do: "Try again in a moment."}
	}
	return problem{Status: http.StatusInternalServerError, What: "This did not work, for a reason that is not known here.", Do: "The log has the details."}
}

// invalid is the text of an error about a refused filter, with the names that the fields have in the form.
func invalid(err error) string {
	text := strings.ReplaceAll(err.Error(), "drover: ", "")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "preview "), "redrive: ")
	for _, field := range filterFields() {
		text = strings.ReplaceAll(text, "Filter."+field.goName+":", field.label+":")
	}
	text = regexp.MustCompile(`Filter\.(Tags|IDs)\[\d+\]:`).ReplaceAllString(text, "$1:")
	text = strings.NewReplacer("after: is not the Next of a page", "The page's mark is not one of a list", "FailureFilter.", "", "By:", "Your name:", "Why:", "Reason:", "scope:", "What to pause:", "PerKey:", "For each key:", "KeyFrom:", "Where the key is in the args:", "CanaryFailures:", "Canaries that may fail:", "Canary:", "Canaries:", "Limit:", "At most:", "Plan: ", "").Replace(text)
	return sentence(strings.ReplaceAll(text, "\n", "; "))
}

// refused is the reason that the database gives when it refuses a change in the present state of the subject.
func refused(err error) string {
	if match := regexp.MustCompile(`(?s)\([^\s:()]+: drover: (.*?) \(SQLSTATE DR002\)`).FindStringSubmatch(err.Error()); match != nil {
		return visible(sentence(match[1]))
	}
	return "It is in another state by now."
}

// sentence returns the text with a capital letter at its beginning and a full stop at its end.
func sentence(text string) string {
	text = strings.TrimPrefix(text, "drover: ")
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + strings.TrimRight(text[1:], ".") + "."
}
