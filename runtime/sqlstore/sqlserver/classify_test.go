package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/lanebox/lanebox/runtime/event"
)

func TestClassify(t *testing.T) {
	server := func(number int32) error {
		return fmt.Errorf("wrapped: %w", mssql.Error{Number: number, Message: "lanebox: publish t: m"})
	}
	several := func(numbers ...int32) error {
		last := mssql.Error{}
		for _, n := range numbers {
			last.All = append(last.All, mssql.Error{Number: n, Message: "lanebox: publish t: m"})
			last.Number = n
		}
		return last
	}
	configuration := func(err error) bool {
		var c *event.ConfigurationError
		return errors.As(err, &c) && c.Topic == "t" && c.Reason == "m"
	}
	again := func(err error) bool {
		var r *event.RetryableError
		return errors.As(err, &r) && r.Op == "op"
	}
	connection := func(err error) bool { return errors.Is(err, ErrConnection) }
	over := func(err error) bool { return errors.Is(err, errOver) }
	missing := func(err error) bool { return strings.Contains(err.Error(), "Migrate") }
	neither := func(err error) bool {
		return !missing(err) && !configuration(err) && !again(err) && !connection(err) && !over(err)
	}
	for _, c := range []struct {
		err  error
		want func(error) bool
	}{
		{server(51001), configuration}, {server(51006), configuration}, {server(51009), configuration}, {server(51010), neither}, {server(51011), neither},
		{server(51000), again}, {server(1205), again}, {server(1222), again}, {server(2627), neither}, {server(2601), neither}, {server(3960), again},
		{server(40197), connection}, {server(40501), connection}, {server(40613), connection}, {server(49918), connection}, {server(49919), connection},
		{server(49920), connection}, {server(4060), connection}, {server(10928), connection}, {server(10929), connection}, {server(40143), connection},
		{server(233), connection}, {server(64), connection}, {server(10053), connection}, {server(10054), connection}, {server(10060), connection},
		{server(596), connection}, {server(6005), connection},
		{server(0), over}, {server(3930), over}, {server(3998), over}, {server(51013), over}, {server(701), connection}, {sql.ErrTxDone, over},
		{server(207), neither}, {server(208), missing}, {server(547), neither}, {server(18456), neither},
		{several(51000, 3609), again}, {several(51002, 3609), configuration}, {several(3621, 1205), again}, {several(547, 3621), neither},
		{mssql.ServerError{}, connection}, {mssql.StreamError{InnerError: io.EOF}, connection}, {driver.ErrBadConn, connection},
		{io.ErrUnexpectedEOF, connection}, {&net.OpError{Op: "read", Err: errors.New("reset")}, connection},
		{context.Canceled, neither}, {fmt.Errorf("timeout: %w", context.DeadlineExceeded), neither}, {errors.New("other"), neither},
	} {
		got := Classify("op", c.err)
		if !c.want(got) {
			t.Errorf("%v became %v", c.err, got)
		}
		if !configuration(got) && !errors.Is(c.err, sql.ErrTxDone) && !isOf(got, c.err) {
			t.Errorf("%v lost its cause: %v", c.err, got)
		}
		if again := Classify("outer", got); !neither(got) && !missing(got) && again != got {
			t.Errorf("classified twice: %v", again)
		}
	}
	if Classify("op", nil) != nil {
		t.Error("nil became an error")
	}
}

// isOf is errors.Is for errors that cannot be compared.
func isOf(err, target error) bool {
	var have, want mssql.Error
	if errors.As(target, &want) {
		return errors.As(err, &have) && have.Number == want.Number
	}
	return errors.Is(err, target)
}

func TestRefusalNamesTheTopic(t *testing.T) {
	for message, want := range map[string]event.ConfigurationError{
		"lanebox: publish order.placed.v1: no route matches": {Topic: "order.placed.v1", Reason: "no route matches"},
		"lanebox: receive a: b: key has 300 bytes":           {Topic: "a: b", Reason: "key has 300 bytes"},
		"lanebox: something else":                            {Topic: "?", Reason: "something else"},
		"by somebody else":                                   {Topic: "?", Reason: "by somebody else"},
	} {
		var got *event.ConfigurationError
		if !errors.As(refusal(message), &got) || *got != want {
			t.Errorf("%s: got %+v, want %+v", message, got, want)
		}
	}
}

func TestRetryGivesUp(t *testing.T) {
	tries := 0
	err := retry(t.Context(), func() error { tries++; return &event.RetryableError{Op: "x", Err: io.EOF} })
	if tries != 3 || err == nil {
		t.Errorf("%d tries, %v", tries, err)
	}
	tries = 0 // in tables of lanebox another transaction was first
	err = retry(t.Context(), func() error { tries++; return fmt.Errorf("x: %w", mssql.Error{Number: 2627}) })
	if tries != 3 || err == nil {
		t.Errorf("%d tries of a unique key, %v", tries, err)
	}
	tries = 0
	if err := retry(t.Context(), func() error { tries++; return io.EOF }); tries != 1 || err == nil {
		t.Errorf("%d tries, %v", tries, err)
	}
}

// How the database was opened is wrong: the error says so.
func TestAdvice(t *testing.T) {
	for want, err := range map[string]error{
		"connection timeout": &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded},
		`as "sqlserver"`:     errors.New("sql: expected 0 arguments, got 4"),
	} {
		if got := Classify("op", err); !strings.Contains(got.Error(), want) || !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if got := Classify("op", context.DeadlineExceeded); got.Error() != "op: context deadline exceeded" {
		t.Errorf("got %v", got)
	}
}
