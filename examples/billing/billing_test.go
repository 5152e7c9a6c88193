package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/storetest/testmssql"
)

// onEach runs a test on SQLite, and on SQL Server if there is one. n is how many
// invoices are enough: some engines compile every batch for seconds.
func onEach(t *testing.T, test func(t *testing.T, address string, n int)) {
	t.Run("SQLite", func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "billing.db"), 20) })
	t.Run("SQLServer", func(t *testing.T) { test(t, testmssql.URL(t), 3) })
}

var mailed = regexp.MustCompile(`(?m)^mail: invoice (\S+) is (\S+)$`)

// The whole demonstration, twice on one database.
func TestDemonstration(t *testing.T) {
	onEach(t, func(t *testing.T, address string, n int) {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
		defer cancel()
		for range 2 {
			var out bytes.Buffer
			if err := demonstrate(ctx, &out, address, n); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			told := map[string]string{}
			for _, m := range mailed.FindAllStringSubmatch(out.String(), -1) {
				told[m[1]] += m[2] + " "
			}
			settled := 0
			for number, what := range told {
				if strings.HasPrefix(what, "issued ") && strings.Contains(what, "settled ") {
					settled++
				} else if strings.HasPrefix(what, "settled ") && strings.Contains(what, "issued ") {
					t.Errorf("mails of %s: %s", number, what)
				}
			}
			if settled < n || !strings.Contains(out.String(), fmt.Sprintf("OK: %d invoices", n)) {
				t.Errorf("%d of %d invoices are settled:\n%s", settled, n, &out)
			}
		}
	})
}

// An invoice that cannot be stored is not published either.
func TestIssueIsAllOrNothing(t *testing.T) {
	onEach(t, func(t *testing.T, address string, _ int) {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
		defer cancel()
		on := databaseOf(address)
		db, err := on.open(address)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		billing, err := NewBilling(ctx, db, on)
		if err != nil {
			t.Fatal(err)
		}
		if err := billing.Issue(ctx, "2026-1", "Ada", 100); err != nil {
			t.Fatal(err)
		}
		if err := billing.Issue(ctx, "2026-1", "Bob", 200); err == nil {
			t.Error("two invoices have one number")
		}
		// One message for the bank and one for the mail.
		var messages int
		if err := db.QueryRowContext(ctx, `SELECT COUNT(*) FROM billing_outbox`).Scan(&messages); err != nil || messages != 2 {
			t.Errorf("%d messages wait, %v; want 2", messages, err)
		}
		if err := billing.judge(ctx, io.Discard, []string{"2026-1"}); err == nil || !strings.Contains(err.Error(), "2026-1: 0 of 100 cents") {
			t.Errorf("an unpaid invoice is judged: %v", err)
		}
	})
}
