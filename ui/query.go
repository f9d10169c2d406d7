package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
)

// query is the part of an address after the question mark.
type query struct{ url.Values }

func bad(format string, args ...any) error { return badAt("", format, args...) }

// badAt does the same as bad, and also names the wrong field, for the API.
func badAt(field, format string, args ...any) error {
	return problem{Status: http.StatusBadRequest, What: visible(fmt.Sprintf(format, args...)), Do: "Change the address or the form, and send it again.", Field: field}
}

func readQuery(r *http.Request) (query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return query{}, bad("The address cannot be read after its question mark.")
	}
	return query{values}, nil
}

// checkKeys returns an error if the address has a key that is not one of the known keys. If a misspelt key were ignored,
// the page would show other jobs than the person meant.
func (q query) checkKeys(known ...string) error {
	for key := range q.Values {
		if !slices.Contains(known, key) {
			return bad("This page knows no %q.", cut(key, 40))
		}
	}
	return nil
}

// The method one returns the value of a key; "" if the address lacks the key. Two values that are not empty are a mistake.
func (q query) one(key string) (string, error) {
	var one string
	for _, value := range q.Values[key] {
		if one != "" && value != "" {
			return "", badAt(key, "The address has %q twice.", cut(key, 40))
		}
		one += value
	}
	return one, nil
}

// number returns the value of a key, which must be a number from 1 to most. If the address has no value, it returns
// standard.
func (q query) number(key string, standard, most int) (int, error) {
	value, err := q.one(key)
	if err != nil || value == "" {
		return standard, err
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > most {
		return 0, badAt(key, "%s is not a number from 1 to %d: %q.", key, most, cut(value, 40))
	}
	return n, nil
}

// The method id returns the value of key: the id or the name of the page's subject. Besides key, the address may have
// only the keys in the parameter others.
func (q query) id(key string, others ...string) (string, error) {
	if err := q.checkKeys(append(others, key)...); err != nil {
		return "", err
	}
	id, err := q.one(key)
	if err == nil && id == "" {
		err = badAt(key, "The address lacks %q.", key)
	}
	return id, err
}

// subject reads the id or the name of the page's subject from the address, and loads the subject.
func subject[T any](ctx context.Context, q query, key string, load func(context.Context, string) (T, error)) (id string, of T, err error) {
	if id, err = q.id(key); err == nil {
		of, err = load(ctx, id)
	}
	if _, job := any(of).(*drover.JobInfo); !job && errors.Is(err, drover.ErrNotFound) {
		err = noneWith(key)
	}
	return id, of, err
}

// noneWith is the problem of an address whose subject does not exist.
func noneWith(key string) error {
	return problem{Status: http.StatusNotFound, What: "There is none with this " + key + ".", Do: "It may have been deleted since: look for it in the list."}
}

// momentForms are the forms in which a person may write a time. The command line takes the same forms.
const momentForms = "2026-01-31T12:00:00Z, the date 2026-01-31 (UTC), or how long ago: 90m, 24h, 7d"

func readMoment(value string, now time.Time) (time.Time, bool) {
	if at, err := readDate(value); err == nil {
		return at, !at.IsZero()
	}
	d, err := operate.Span(value)
	return now.Add(-d), err == nil && d >= 0
}

func readDate(value string) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, value); err == nil {
		return at, nil
	}
	return time.Parse(time.DateOnly, value)
}
