//go:build !unix

package pgdev

import (
	"context"
	"errors"
)

var errNotUnix = errors.New("clusters are made on Unix only")

// cluster has fields only on Unix.
type cluster struct{}

func newCluster(context.Context, Options, string, func(dir string) (string, error)) (*cluster, error) {
	return nil, errNotUnix
}

func (*cluster) url() string                   { return "" }
func (*cluster) close() error                  { return errNotUnix }
func (*cluster) kill() error                   { return errNotUnix }
func (*cluster) restart(context.Context) error { return errNotUnix }

func (*cluster) standby(context.Context) (*cluster, error) { return nil, errNotUnix }
