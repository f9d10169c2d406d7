package ui

import (
	"context"
	"slices"

	"github.com/drover-queue/drover"
)

// failuresData are failure groups. The group with the newest failure is the first.
type failuresData struct {
	Groups   []drover.FailureGroup
	Kind     string
	Statuses []option
	Status   string
	More     string // address of a longer list; "" if the list has all groups
}

const (
	fewGroups  = 50
	mostGroups = 1000
)

func (s source) failures(ctx context.Context, q query) (*view, error) {
	if err := q.checkKeys("status", "kind", "limit"); err != nil {
		return nil, err
	}
	status, err := q.one("status")
	if err != nil {
		return nil, err
	}
	kind, err := q.one("kind")
	if err != nil {
		return nil, err
	}
	limit, err := q.number("limit", fewGroups, mostGroups)
	if err != nil {
		return nil, err
	}
	d := &failuresData{Kind: kind, Status: status}
	statuses := []string{string(drover.FailureOpen), string(drover.FailureResolved), string(drover.FailureIgnored), "all"}
	if status == "" {
		d.Status = statuses[0]
	}
	if !slices.Contains(statuses, d.Status) {
		return nil, badAt("status", "Status: %q is none of open, resolved, ignored and all.", cut(status, 40))
	}
	d.Statuses = optionsOf(d.Status, statuses...)
	filter := drover.FailureFilter{Kind: kind, Status: drover.FailureStatus(d.Status), Limit: limit}
	if d.Status == "all" {
		filter.Status = ""
	}
	if d.Groups, err = s.client.FailureGroups(ctx, filter); err != nil {
		return nil, err
	}
	if len(d.Groups) == limit && limit < mostGroups {
		d.More = href("failures", "status", d.Status, "kind", kind, "limit", mostGroups)
	}
	return &view{Title: "Failures", Data: d}, nil
}

// failureData is a failure group, and the values that its buttons can set.
type failureData struct {
	*drover.FailureGroup
	Statuses, Policies []option
}

func optionsOf(now string, all ...string) (options []option) {
	for _, word := range all {
		options = append(options, option{word, word == now})
	}
	return options
}

func (s source) failure(ctx context.Context, q query) (*view, error) {
	id, group, err := subject(ctx, q, "id", s.client.FailureGroup)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Failure " + visible(id), Data: &failureData{group, optionsOf(string(group.Status), "open", "resolved", "ignored"), optionsOf(policyOf(group), "retry", "discard", "park")}}, nil
}
