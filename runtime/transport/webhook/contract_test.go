package webhook

import (
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/transporttest"
)

func TestContract(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, r *inbox.Receiver) transporttest.Link {
		source, err := NewSource(r, SourceConfig{Name: "link", MaxConcurrent: 1000, Logger: slog.New(slog.DiscardHandler)}, StandardWebhooks("old", "secret"))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(source)
		t.Cleanup(server.Close)
		proxy := transporttest.NewProxy(t, server.Listener.Addr().String())
		d, err := NewDestination(nil, Options{URL: "http://" + proxy.Address() + "/hook", Secret: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return transporttest.Link{Destination: d, Close: d.Close, Proxy: proxy}
	}, transporttest.Features{Answers: true, OrderedPerKey: true, Network: true, MaxBytes: 1 << 20})
}
