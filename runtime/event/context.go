package event

import (
	"context"
	"maps"
)

type contextKey struct{}

// WithHandled returns a context in which newly published messages inherit from
// m: its correlation id (or its own id when it has none) and its trace context,
// with m's id as causation id. The worker calls it before each handler.
func WithHandled(ctx context.Context, m Message) context.Context {
	h := Headers{HeaderCausationID: m.ID.String(), HeaderCorrelationID: m.ID.String()}
	for _, name := range []string{HeaderCorrelationID, HeaderTraceParent, HeaderTraceState} {
		if v := m.Headers[name]; v != "" {
			h[name] = v
		}
	}
	return WithHeaders(ctx, h)
}

// WithHeaders returns a context whose headers are added to every message that
// is published with it, for example a correlation id or trace context. Headers
// of an outer context remain unless h names them again.
func WithHeaders(ctx context.Context, h Headers) context.Context {
	merged := maps.Clone(h)
	if outer, ok := ctx.Value(contextKey{}).(Headers); ok {
		merged = maps.Clone(outer)
		maps.Copy(merged, h)
	}
	return context.WithValue(ctx, contextKey{}, merged)
}

// OutgoingHeaders returns the headers of a message published with ctx: those of
// the context, overridden by own. The result is the caller's to change; nil
// means none.
func OutgoingHeaders(ctx context.Context, own Headers) Headers {
	inherited, _ := ctx.Value(contextKey{}).(Headers)
	if len(inherited) == 0 {
		return maps.Clone(own)
	}
	h := maps.Clone(inherited)
	maps.Copy(h, own)
	return h
}
