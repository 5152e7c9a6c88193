package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/internal/rowtext"
)

// conflicted is the reason of a message whose idempotency key belongs to another
// body.
const conflicted = "another body was received under the same idempotency key"

// receiveAll stores messages and buries what cannot be received. Messages that
// turn out to be in conflict are buried by a second transaction: their place in
// the order does not matter any more. A position moves with that second one, so
// that none is lost when the process ends between the two.
func (r *Receiver) receiveAll(ctx context.Context, messages []Incoming, store receive) ([]Disposition, error) {
	fit := make([]Incoming, len(messages))
	for i := range messages {
		fit[i] = r.fit(messages[i])
	}
	dispositions, err := r.try(ctx, fit, store)
	for tries := 0; err == nil && slices.Contains(dispositions, Conflict); tries++ {
		if tries == buryTries {
			return nil, fmt.Errorf("receive from %s: dead letters are in conflict with other messages", r.c.Source.Name)
		}
		err = r.buryConflicts(ctx, fit, dispositions, store)
	}
	if err != nil {
		return nil, err
	}
	for i, d := range dispositions {
		if d == Buried {
			r.c.Logger.WarnContext(ctx, "a received message is dead", "source", r.c.Source.Name, "type", fit[i].EventType, "reason", fit[i].Dead)
		}
	}
	return dispositions, nil
}

// buryTries is how often a message is buried under another key. Once is enough,
// unless somebody sent another message under the key of its dead letter.
const buryTries = 4

// buryConflicts buries the messages in conflict and puts their new dispositions
// in place of the old ones.
func (r *Receiver) buryConflicts(ctx context.Context, messages []Incoming, dispositions []Disposition, store receive) error {
	var late []Incoming
	var at []int
	for i, d := range dispositions {
		if d == Conflict {
			messages[i] = buried(messages[i], conflicted)
			late, at = append(late, messages[i]), append(at, i)
		}
	}
	second, err := r.try(ctx, late, store)
	for i, d := range second {
		dispositions[at[i]] = d
	}
	return err
}

// fit returns m as it can be stored: as it is, or as a dead letter.
func (r *Receiver) fit(m Incoming) Incoming {
	if m.Dead != "" {
		return storedDead(m, m.Dead)
	}
	if err := r.check(&m); err != nil {
		return storedDead(m, err.Error())
	}
	return m
}

// storedDead returns m as a dead letter under its own idempotency key, if that
// can be stored.
func storedDead(m Incoming, reason string) Incoming {
	if event.CheckKey(m.IdempotencyKey) != nil {
		return buried(m, reason)
	}
	return tidy(m, reason)
}

// buried returns m as a dead letter under an idempotency key made of the body
// and what identifies it, so that the same message is buried once.
func buried(m Incoming, reason string) Incoming {
	sum := sha256.New()
	for _, part := range []string{m.IdempotencyKey, m.EventType, m.AggregateID, string(m.Payload)} {
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	m.IdempotencyKey = "dead:" + hex.EncodeToString(sum.Sum(nil))
	return tidy(m, reason)
}

// tidy makes the rest of a dead letter storable.
func tidy(m Incoming, reason string) Incoming {
	m.Dead = rowtext.Storable(reason)
	m.EventType = clipped(m.EventType)
	if m.AggregateID != "" && event.CheckKey(m.AggregateID) != nil {
		m.AggregateID = clipped(m.AggregateID)
	}
	headers := event.Headers{}
	for name, value := range m.Headers {
		headers[rowtext.Storable(name)] = rowtext.Storable(value)
	}
	m.Headers = headers
	return m
}

// clipped makes a text storable where a key is expected.
func clipped(s string) string {
	s = rowtext.Storable(s)
	for len(s) > event.MaxKeyBytes {
		s = strings.ToValidUTF8(s[:event.MaxKeyBytes], "")
	}
	return s
}
