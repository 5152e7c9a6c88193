package webhook

import (
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"
)

func githubSignature(secret, body string) string {
	return "sha256=" + hex.EncodeToString(digest([]byte(secret), []byte(body)))
}

// now is a time at which the fixed signatures below are fresh.
var now = time.Unix(1614265330, 0)

func TestVerifiers(t *testing.T) {
	stripeMAC := hex.EncodeToString(digest([]byte("secret"), []byte("1614265330."+goodBody)))
	for name, c := range map[string]struct {
		v       Verifier
		body    string
		headers []string
		refusal string // "" when accepted
	}{
		// The example of GitHub's documentation.
		"GitHub's own example": {GitHub("It's a Secret to Everybody"), "Hello, World!",
			[]string{"X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}, ""},
		"GitHub, new secret":    {GitHub("new", "old"), goodBody, []string{"X-Hub-Signature-256", githubSignature("old", goodBody)}, ""},
		"GitHub, upper case":    {GitHub("s"), goodBody, []string{"X-Hub-Signature-256", "sha256=" + strings.ToUpper(githubSignature("s", goodBody)[7:])}, ""},
		"GitHub, other body":    {GitHub("s"), goodBody + " ", []string{"X-Hub-Signature-256", githubSignature("s", goodBody)}, "does not match"},
		"GitHub, other secret":  {GitHub("s"), goodBody, []string{"X-Hub-Signature-256", githubSignature("t", goodBody)}, "does not match"},
		"GitHub, none":          {GitHub("s"), goodBody, nil, "is missing"},
		"GitHub, SHA-1":         {GitHub("s"), goodBody, []string{"X-Hub-Signature", "sha1=abcd"}, "is missing"},
		"GitHub, short":         {GitHub("s"), goodBody, []string{"X-Hub-Signature-256", githubSignature("s", goodBody)[:20]}, "64 hexadecimal"},
		"GitHub, no prefix":     {GitHub("s"), goodBody, []string{"X-Hub-Signature-256", githubSignature("s", goodBody)[7:]}, "64 hexadecimal"},
		"GitHub, twice":         {GitHub("s"), goodBody, []string{"X-Hub-Signature-256", githubSignature("s", goodBody), "X-Hub-Signature-256", "sha256=00"}, "more than once"},
		"Stripe":                {Stripe("secret"), goodBody, []string{"Stripe-Signature", "t=1614265330,v1=" + stripeMAC + ",v0=abc"}, ""},
		"Stripe, two v1":        {Stripe("other", "secret"), goodBody, []string{"Stripe-Signature", "t=1614265330, v1=00, v1=" + stripeMAC}, ""},
		"Stripe, only v0":       {Stripe("secret"), goodBody, []string{"Stripe-Signature", "t=1614265330,v0=" + stripeMAC}, "at least one v1="},
		"Stripe, no time":       {Stripe("secret"), goodBody, []string{"Stripe-Signature", "v1=" + stripeMAC}, "one t="},
		"Stripe, two times":     {Stripe("secret"), goodBody, []string{"Stripe-Signature", "t=1614265330,t=1,v1=" + stripeMAC}, "one t="},
		"Stripe, other time":    {Stripe("secret"), goodBody, []string{"Stripe-Signature", "t=1614265331,v1=" + stripeMAC}, "does not match"},
		"Stripe, padded time":   {Stripe("secret"), goodBody, []string{"Stripe-Signature", "t=01614265330,v1=" + stripeMAC}, "does not match"},
		"Stripe, not a time":    {Stripe("secret"), goodBody, []string{"Stripe-Signature", "t=now,v1=" + stripeMAC}, "number of seconds"},
		"Stripe, a huge time":   {Stripe("secret"), goodBody, []string{"Stripe-Signature", "t=9223372036854775807,v1=" + stripeMAC}, "number of seconds"},
		"Stripe, old":           {StripeWithin(time.Second, "secret"), goodBody, []string{"Stripe-Signature", "t=1614265320,v1=" + stripeMAC}, "10s off"},
		"Stripe, in the future": {Stripe("secret"), goodBody, []string{"Stripe-Signature", "t=1614266330,v1=" + stripeMAC}, "16m40s off"},
		// The example of the Standard Webhooks libraries.
		"Standard Webhooks' own example": {StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), `{"test": 2432232314}`,
			[]string{"Webhook-Id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "Webhook-Timestamp", "1614265330", "Webhook-Signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, ""},
		"Standard Webhooks, several": {StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), `{"test": 2432232314}`,
			[]string{"Webhook-Id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "Webhook-Timestamp", "1614265330", "Webhook-Signature", "v1a,xx v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, ""},
		"Standard Webhooks, other id": {StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), `{"test": 2432232314}`,
			[]string{"Webhook-Id", "msg_x", "Webhook-Timestamp", "1614265330", "Webhook-Signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, "does not match"},
		"Standard Webhooks, no version": {StandardWebhooks("s"), goodBody,
			[]string{"Webhook-Id", "1", "Webhook-Timestamp", "1614265330", "Webhook-Signature", "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, "no v1 signature"},
		"Standard Webhooks, old": {StandardWebhooks("s"), goodBody,
			[]string{"Webhook-Id", "1", "Webhook-Timestamp", "1614264330", "Webhook-Signature", "v1,AAAA"}, "16m40s off"},
		"Standard Webhooks, no id": {StandardWebhooks("s"), goodBody, []string{"Webhook-Timestamp", "1"}, "webhook-id is missing"},
		"bearer":                   {Bearer("new", "old"), goodBody, []string{"Authorization", "bearer old"}, ""},
		"bearer, wrong":            {Bearer("new"), goodBody, []string{"Authorization", "Bearer newer"}, "accepted key"},
		"bearer, prefix":           {Bearer("new"), goodBody, []string{"Authorization", "Bearer ne"}, "accepted key"},
		"bearer, basic":            {Bearer("new"), goodBody, []string{"Authorization", "Basic new"}, "of the form"},
		"bearer, none":             {Bearer("new"), goodBody, nil, "is missing"},
		"API key":                  {APIKey("X-Key", "a", "b"), goodBody, []string{"X-Key", "b"}, ""},
		"API key, wrong":           {APIKey("X-Key", "a"), goodBody, []string{"X-Key", "A"}, "accepted key"},
		"API key, twice":           {APIKey("X-Key", "a"), goodBody, []string{"X-Key", "a", "X-Key", "a"}, "more than once"},
		"unsigned":                 {Unsigned(), goodBody, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.v.Verify(post(c.body, c.headers...).Header, []byte(c.body), now)
			switch {
			case c.refusal == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal)):
				t.Errorf("got %v, want a refusal about %q", err, c.refusal)
			}
		})
	}
}

func TestRefusedSendersAreChallenged(t *testing.T) {
	for want, v := range map[string]Verifier{"Bearer": Bearer("a"), "ApiKey": APIKey("X-Key", "a"), "HMAC": GitHub("a")} {
		s, _ := newSource(t, orders(), v)
		if w := serve(s, post(goodBody)); w.Header().Get("WWW-Authenticate") != want {
			t.Errorf("%T: %v", v, w.Header())
		}
	}
}

// A replayed body with another id must not get past deduplication: the key of
// a signed source without rules is the id that the signature covers.
func TestSignedIDDecidesTheIdempotencyKey(t *testing.T) {
	s, ledger := newSource(t, SourceConfig{Name: "signed", Logger: quiet}, StandardWebhooks("secret"))
	for _, id := range []string{"one", "two"} {
		r := post(goodBody, "Ce-Id", id, "Ce-Type", "t")
		sign(r.Header, [][]byte{[]byte("secret")}, "signed-id", time.Now(), []byte(goodBody))
		serve(s, r)
	}
	if stored := ledger.Stored(); len(stored) != 1 || stored[0].IdempotencyKey != "signed-id" {
		t.Errorf("stored %+v", stored)
	}
}

func FuzzSignatureHeaders(f *testing.F) {
	f.Add("t=1614265330,v1=00", "1", "1614265330", "v1,AAAA", "Bearer x")
	f.Add("t=,v1=,=", "", "-1", "v1, v1,", "")
	f.Fuzz(func(t *testing.T, a, id, timestamp, signature, authorization string) {
		h := http.Header{"X-Hub-Signature-256": {a}, "Stripe-Signature": {a}, "Webhook-Id": {id},
			"Webhook-Timestamp": {timestamp}, "Webhook-Signature": {signature}, "Authorization": {authorization}}
		for _, v := range []Verifier{GitHub("k1"), Stripe("k1"), StandardWebhooks("k1"), Bearer("unguessable-1")} {
			if err := v.Verify(h, []byte(goodBody), now); err == nil {
				t.Errorf("%T accepted %q", v, h)
			}
		}
	})
}
