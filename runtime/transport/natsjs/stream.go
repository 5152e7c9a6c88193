package natsjs

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/lanebox/lanebox/runtime/topology"
)

// ensureStream makes the stream of a destination if it is missing and the schema
// says so, and checks it.
func ensureStream(ctx context.Context, js jetstream.JetStream, t topology.NATSDestination, subject *subjectTemplate) (*jetstream.StreamInfo, error) {
	stream, err := js.Stream(ctx, t.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) && t.Declare {
		stream, err = declareStream(ctx, js, t, subject)
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", t.Stream, err)
	}
	info := stream.CachedInfo()
	return info, checkStream(t, info.Config)
}

// declareStream makes the stream. It keeps everything until somebody sets limits,
// and then refuses what is too much instead of dropping what is old.
func declareStream(ctx context.Context, js jetstream.JetStream, t topology.NATSDestination, subject *subjectTemplate) (jetstream.Stream, error) {
	pattern, err := subject.pattern()
	if err != nil {
		return nil, wrongTopology("stream "+t.Stream, "cannot be declared: %v", err)
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: t.Stream, Subjects: []string{pattern}, Description: "declared by lanebox for destination " + t.Name,
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		Duplicates: t.Duplicates, AllowDirect: true,
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // somebody else was faster
		return js.Stream(ctx, t.Stream)
	}
	return stream, err
}

func checkStream(t topology.NATSDestination, c jetstream.StreamConfig) error {
	what := "stream " + c.Name
	switch {
	case c.NoAck:
		return wrongTopology(what, "acknowledges nothing (no_ack): what is lost cannot be told")
	case c.Mirror != nil:
		return wrongTopology(what, "is a mirror of %s and takes no messages", c.Mirror.Name)
	case c.Sealed:
		return wrongTopology(what, "is sealed and takes no messages")
	case t.Duplicates > 0 && c.Duplicates < t.Duplicates:
		return wrongTopology(what, "drops repeated message ids for %v only; the schema says %v (nats stream edit %s --dupe-window=%v)", c.Duplicates, t.Duplicates, c.Name, t.Duplicates)
	}
	return nil
}

// dropsOld reports whether a stream drops its oldest messages when it is full,
// read or not.
func dropsOld(c jetstream.StreamConfig) bool {
	return c.Discard == jetstream.DiscardOld && (c.MaxMsgs > 0 || c.MaxBytes > 0 || c.MaxMsgsPerSubject > 0)
}

// checkName refuses a name that cannot be part of a subject.
func checkName(what, name string) error {
	if name == "" {
		return fmt.Errorf("the %s has no name", what)
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c == 0x7f || c == '.' || c == '*' || c == '>' || c == '/' || c == '\\' {
			return fmt.Errorf("%s name %q contains %q", what, name, c)
		}
	}
	if len(name) > maxName {
		return fmt.Errorf("%s name %q has %d bytes; the limit is %d", what, name, len(name), maxName)
	}
	return nil
}

// maxName is the longest name of a stream or consumer, so that a position's name
// can hold it and the time when the stream was made.
const maxName = 200
