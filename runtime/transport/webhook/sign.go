package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	webhookID        = "webhook-id"
	webhookTimestamp = "webhook-timestamp"
	webhookSignature = "webhook-signature"
	secretPrefix     = "whsec_"
)

// secretBytes returns the key of a Standard Webhooks secret: base64 after
// "whsec_", otherwise the text itself.
func secretBytes(secret string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok {
		if secret == "" {
			return nil, errors.New("a secret is empty")
		}
		return []byte(secret), nil
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) == 0 {
		return nil, errors.New("a secret that begins with whsec_ is not base64 behind it")
	}
	return key, nil
}

func secretKeys(secrets []string) ([][]byte, error) {
	keys := make([][]byte, len(secrets))
	for i, s := range secrets {
		var err error
		if keys[i], err = secretBytes(s); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// sign adds the Standard Webhooks headers, with one signature per key.
func sign(h http.Header, keys [][]byte, id string, now time.Time, body []byte) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	h.Set(webhookID, id)
	h.Set(webhookTimestamp, timestamp)
	if len(keys) == 0 {
		return
	}
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := digest(key, []byte(id), []byte{'.'}, []byte(timestamp), []byte{'.'}, body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac)
	}
	h.Set(webhookSignature, strings.Join(signatures, " "))
}

// digest returns the HMAC-SHA256 of the parts in order.
func digest(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}
