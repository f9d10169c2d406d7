package main

import (
	"context"
	"fmt"
	"time"

	"github.com/drover-queue/drover/bench/peers"
)

// nodeQueue is a queue that runs on Node.js. Package peers sets how many jobs it runs at the same time.
type nodeQueue struct {
	name string
	peer *peers.Peer
}

func newNodeQueue(ctx context.Context, name string) (contender, error) {
	if reason, ok := peers.Available(ctx); !ok {
		return nil, fmt.Errorf("%w: %s", errAbsent, reason)
	}
	return &nodeQueue{name: name}, nil
}

func (q *nodeQueue) setUp(ctx context.Context, url string) (err error) {
	if q.peer, err = peers.Open(ctx, q.name, url); err != nil {
		return err
	}
	return q.peer.SetUp(ctx)
}

func (q *nodeQueue) insert(ctx context.Context, n int) error { return q.peer.Insert(ctx, n) }

func (q *nodeQueue) burn(ctx context.Context, n, _ int) (time.Duration, error) {
	return q.peer.Burn(ctx, n)
}

func (q *nodeQueue) version() string { return q.peer.Version() }

func (q *nodeQueue) close(context.Context) error {
	if q.peer == nil {
		return nil
	}
	return q.peer.Close()
}
