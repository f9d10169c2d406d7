package drive

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Tracer is a pgx.ConnConfig.Tracer. It is called with each statement that a connection sends.
type Tracer func(conn *pgx.Conn, sql string)

// TraceQueryStart implements pgx.QueryTracer.
func (t Tracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	t(conn, d.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (Tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (Tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (t Tracer) TraceBatchQuery(_ context.Context, conn *pgx.Conn, d pgx.TraceBatchQueryData) {
	t(conn, d.SQL)
}

// TraceBatchEnd implements pgx.BatchTracer.
func (Tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
