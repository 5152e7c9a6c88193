package outbox

import (
	"context"
	"fmt"

	"github.com/lanebox/lanebox/runtime/event"
)

// WithKey returns a draft of the same event that is ordered by k instead of by
// its own key. An explicit key of the whole call wins over it.
func (d Draft) WithKey(k event.AnyKey) Draft {
	if d.make == nil {
		return d
	}
	key := event.RawKeyOf(k).OrderingKey()
	return Draft{make: func(ctx context.Context, o options) (Record, error) {
		if !o.keyed || o.weak {
			o.key, o.keyed, o.weak = key, true, false
		}
		return d.make(ctx, o)
	}}
}

// Records returns what drafts store, for a hook that turns one message into
// others. Drafts without an explicit key take fallback as key or, when fallback
// is empty, their own. An error is permanent: the same drafts fail again.
func Records(ctx context.Context, fallback string, drafts ...Draft) ([]Record, error) {
	records, err := makeRecords(ctx, options{key: fallback, keyed: fallback != "", weak: true}, drafts)
	if err != nil {
		return nil, event.AsPermanent(err)
	}
	return records, nil
}

func makeRecords(ctx context.Context, o options, drafts []Draft) ([]Record, error) {
	records := make([]Record, len(drafts))
	for i, d := range drafts {
		if d.make == nil {
			return nil, &event.ConfigurationError{Topic: "?", Reason: fmt.Sprintf("event %d of the call is nil", i+1)}
		}
		r, err := d.make(ctx, o)
		if err != nil {
			return nil, err
		}
		records[i] = r
	}
	return records, nil
}
