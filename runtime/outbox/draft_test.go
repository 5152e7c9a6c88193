package outbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/outbox"
)

type note struct{ Key string }

var noted = outbox.Definition[event.RawKey, note]{
	Topic: "note", KeyName: "key",
	Key:    func(n *note) event.RawKey { return event.RawKey(n.Key) },
	Encode: event.EncodeJSON[note],
}

// TestDraftKeys tries every combination of keys: of the event, of the draft and
// of the call or the hook.
func TestDraftKeys(t *testing.T) {
	ctx := context.Background()
	own := outbox.NewDraft(&noted, note{"own"})
	var refused *event.ConfigurationError
	for name, c := range map[string]struct {
		draft    outbox.Draft
		fallback string
		want     string // "" for refused
	}{
		"own key":                        {own, "", "own"},
		"fallback before own key":        {own, "aggregate", "aggregate"},
		"explicit key before fallback":   {own.WithKey(event.RawKey("x")), "aggregate", "x"},
		"the last explicit key counts":   {own.WithKey(event.RawKey("x")).WithKey(event.RawKey("y")), "", "y"},
		"empty explicit key":             {own.WithKey(event.RawKey("")), "aggregate", ""},
		"nil explicit key":               {own.WithKey(nil), "", ""},
		"no key at all":                  {outbox.NewDraft(&noted, note{}), "", ""},
		"fallback for an empty own key":  {outbox.NewDraft(&noted, note{}), "aggregate", "aggregate"},
		"zero draft":                     {outbox.Draft{}, "aggregate", ""},
		"zero draft with a key":          {outbox.Draft{}.WithKey(event.RawKey("x")), "", ""},
		"fallback that is no key (long)": {own, string(make([]byte, 300)), ""},
	} {
		records, err := outbox.Records(ctx, c.fallback, c.draft)
		if c.want == "" {
			if class, _ := event.Classify(err); !errors.As(err, &refused) || class != event.Permanent || records != nil {
				t.Errorf("%s: %v, error %v", name, records, err)
			}
			continue
		}
		if err != nil || len(records) != 1 || records[0].Key != c.want {
			t.Errorf("%s: %v, error %v, want key %q", name, records, err, c.want)
		}
	}
}

// TestEmptyKeyNamesWhatToSet checks that the message names the members that fill
// the key, where they are known.
func TestEmptyKeyNamesWhatToSet(t *testing.T) {
	for fields, want := range map[string]string{
		"":                     "publish note: key is empty: event declares key key; set its field or publish with an explicit key",
		"TenantID and Account": "publish note: key is empty: event declares key key; set TenantID and Account or publish with an explicit key",
	} {
		d := noted
		d.KeyFields = fields
		_, err := outbox.Records(context.Background(), "", outbox.NewDraft(&d, note{}))
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
