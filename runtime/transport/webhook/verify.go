package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lanebox/lanebox/runtime/transport/internal/extract"
)

// DefaultTolerance is how far the time of a signed request may be off.
const DefaultTolerance = 5 * time.Minute

// A Verifier decides whether a request comes from who it should. It is safe for
// concurrent use. body is the request's body as it was sent, before any
// decompression. The answer to the sender quotes only a *VerificationError; the
// text of other errors stays in the log.
type Verifier interface {
	Verify(h http.Header, body []byte, now time.Time) error
}

// A VerificationError says why a request was not accepted. Its reason helps the
// sender and holds no secret.
type VerificationError struct{ Reason string }

func (e *VerificationError) Error() string { return e.Reason }

func unverified(format string, args ...any) error {
	return &VerificationError{Reason: fmt.Sprintf(format, args...)}
}

// A builtin verifier can say more about itself.
type builtin interface {
	Verifier
	// check reports secrets that cannot work.
	check() error
	// challenge is the value of WWW-Authenticate.
	challenge() string
	// headersOnly reports that the body plays no part, so that a request can be
	// refused before its body is read.
	headersOnly() bool
}

// single returns the only value of a header that must be there once.
func single(h http.Header, name string) (string, error) {
	switch values := h.Values(name); {
	case len(values) == 0 || values[0] == "":
		return "", unverified("header %s is missing", name)
	case len(values) > 1:
		return "", unverified("header %s occurs more than once", name)
	default:
		return values[0], nil
	}
}

// signed is what the HMAC verifiers have in common. Any of the keys may match,
// so that a secret can be changed without a gap.
type signed struct {
	keys [][]byte
	err  error
}

func (s *signed) check() error {
	if s.err == nil && len(s.keys) == 0 {
		return errors.New("no secret was given")
	}
	return s.err
}

func (s *signed) challenge() string { return "HMAC" }
func (s *signed) headersOnly() bool { return false }

// matches reports whether one of the signatures is that of the parts under one
// of the keys.
func (s *signed) matches(signatures [][]byte, parts ...[]byte) error {
	for _, key := range s.keys {
		want := digest(key, parts...)
		for _, got := range signatures {
			if hmac.Equal(got, want) {
				return nil
			}
		}
	}
	return unverified("the signature does not match: check the secret, and that the body is signed as it is sent")
}

func plainSecrets(secrets []string) signed {
	s := signed{}
	for _, secret := range secrets {
		if secret == "" {
			s.err = errors.New("a secret is empty")
		}
		s.keys = append(s.keys, []byte(secret))
	}
	return s
}

// checkTime refuses a signed time, in seconds since 1970, that is too far from
// now in either direction.
func checkTime(text string, now time.Time, tolerance time.Duration) error {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 || seconds > 1<<40 {
		return unverified("the timestamp is not a number of seconds")
	}
	age := now.Sub(time.Unix(seconds, 0))
	if age.Abs() > tolerance {
		return unverified("the timestamp is %s off; %s are allowed: check the clock, and do not send old requests again", age.Abs().Round(time.Second), tolerance)
	}
	return nil
}

type github struct{ signed }

// GitHub verifies X-Hub-Signature-256, as GitHub sends it, with any of the
// secrets.
func GitHub(secrets ...string) Verifier { return &github{plainSecrets(secrets)} }

func (v *github) Verify(h http.Header, body []byte, _ time.Time) error {
	const name = "X-Hub-Signature-256"
	value, err := single(h, name)
	if err != nil {
		return err
	}
	text, ok := strings.CutPrefix(value, "sha256=")
	signature, err := hex.DecodeString(text)
	if !ok || err != nil || len(signature) != sha256.Size {
		return unverified("header %s is not sha256= and 64 hexadecimal digits", name)
	}
	return v.matches([][]byte{signature}, body)
}

type stripe struct {
	signed
	tolerance time.Duration
}

// Stripe verifies Stripe-Signature with any of the secrets and a tolerance of
// five minutes.
func Stripe(secrets ...string) Verifier { return StripeWithin(DefaultTolerance, secrets...) }

// StripeWithin is Stripe with another tolerance.
func StripeWithin(tolerance time.Duration, secrets ...string) Verifier {
	return &stripe{plainSecrets(secrets), tolerance}
}

func (v *stripe) check() error { return errors.Join(v.signed.check(), checkTolerance(v.tolerance)) }

func (v *stripe) Verify(h http.Header, body []byte, now time.Time) error {
	const name = "Stripe-Signature"
	value, err := single(h, name)
	if err != nil {
		return err
	}
	timestamp, signatures, ok := parseStripe(value)
	if !ok {
		return unverified("header %s does not hold one t= and at least one v1=", name)
	}
	if err := checkTime(timestamp, now, v.tolerance); err != nil {
		return err
	}
	return v.matches(signatures, []byte(timestamp), []byte{'.'}, body)
}

// parseStripe splits "t=1,v1=ab,v1=cd"; other schemes are passed over.
func parseStripe(value string) (timestamp string, signatures [][]byte, ok bool) {
	for item := range strings.SplitSeq(value, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(item), "=")
		switch name {
		case "t":
			if timestamp != "" {
				return "", nil, false
			}
			timestamp = text
		case "v1":
			if signature, err := hex.DecodeString(text); err == nil {
				signatures = append(signatures, signature)
			}
		}
	}
	return timestamp, signatures, timestamp != "" && len(signatures) > 0
}

type standard struct {
	signed
	tolerance time.Duration
}

// StandardWebhooks verifies webhook-id, webhook-timestamp and webhook-signature
// with any of the secrets and a tolerance of five minutes. A secret "whsec_…" is
// base64 behind the prefix; any other text is used as it is.
func StandardWebhooks(secrets ...string) Verifier {
	return StandardWebhooksWithin(DefaultTolerance, secrets...)
}

// StandardWebhooksWithin is StandardWebhooks with another tolerance.
func StandardWebhooksWithin(tolerance time.Duration, secrets ...string) Verifier {
	keys, err := secretKeys(secrets)
	return &standard{signed{keys: keys, err: err}, tolerance}
}

func (v *standard) check() error { return errors.Join(v.signed.check(), checkTolerance(v.tolerance)) }

func (v *standard) Verify(h http.Header, body []byte, now time.Time) error {
	id, err := single(h, webhookID)
	if err != nil {
		return err
	}
	timestamp, err := single(h, webhookTimestamp)
	if err != nil {
		return err
	}
	value, err := single(h, webhookSignature)
	if err != nil {
		return err
	}
	signatures := parseStandard(value)
	if len(signatures) == 0 {
		return unverified("header %s holds no v1 signature", webhookSignature)
	}
	if err := checkTime(timestamp, now, v.tolerance); err != nil {
		return err
	}
	return v.matches(signatures, []byte(id), []byte{'.'}, []byte(timestamp), []byte{'.'}, body)
}

// parseStandard splits "v1,base64 v1,base64"; other schemes are passed over.
func parseStandard(value string) (signatures [][]byte) {
	for item := range strings.FieldsSeq(value) {
		text, ok := strings.CutPrefix(item, "v1,")
		if !ok {
			continue
		}
		if signature, err := base64.StdEncoding.DecodeString(text); err == nil {
			signatures = append(signatures, signature)
		}
	}
	return signatures
}

func checkTolerance(d time.Duration) error {
	if d <= 0 {
		return errors.New("the tolerance must be positive")
	}
	return nil
}

// tokens compares a header with digests of the tokens, so that the time it
// takes says nothing about them.
type tokens struct {
	header string
	scheme string // in front of the token, "" for none
	sums   [][sha256.Size]byte
	err    error
}

// Bearer accepts "Authorization: Bearer …" with any of the tokens.
func Bearer(accepted ...string) Verifier { return newTokens("Authorization", "Bearer", accepted) }

// APIKey accepts a header that holds any of the keys.
func APIKey(header string, keys ...string) Verifier { return newTokens(header, "", keys) }

func newTokens(header, scheme string, accepted []string) Verifier {
	v := &tokens{header: header, scheme: scheme}
	switch {
	case !extract.IsToken(header):
		v.err = fmt.Errorf("%q is not a header name", header)
	case len(accepted) == 0:
		v.err = errors.New("no secret was given")
	}
	for _, t := range accepted {
		if strings.TrimSpace(t) == "" {
			v.err = errors.New("a secret is empty")
		}
		v.sums = append(v.sums, sha256.Sum256([]byte(t)))
	}
	return v
}

func (v *tokens) Verify(h http.Header, _ []byte, _ time.Time) error {
	value, err := single(h, v.header)
	if err != nil {
		return err
	}
	if v.scheme != "" {
		scheme, token, _ := strings.Cut(value, " ")
		if !strings.EqualFold(scheme, v.scheme) {
			return unverified("header %s is not of the form %q", v.header, v.scheme+" …")
		}
		value = strings.TrimSpace(token)
	}
	got, match := sha256.Sum256([]byte(value)), 0
	for _, want := range v.sums {
		match |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	if match == 0 {
		return unverified("header %s does not hold an accepted key", v.header)
	}
	return nil
}

func (v *tokens) check() error      { return v.err }
func (v *tokens) headersOnly() bool { return true }

func (v *tokens) challenge() string {
	if v.scheme != "" {
		return v.scheme
	}
	return "ApiKey"
}

type unsigned struct{}

// Unsigned accepts every request. Use it behind something that authenticates.
func Unsigned() Verifier { return unsigned{} }

func (unsigned) Verify(http.Header, []byte, time.Time) error { return nil }
func (unsigned) check() error                                { return nil }
func (unsigned) headersOnly() bool                           { return true }
func (unsigned) challenge() string                           { return "" }
