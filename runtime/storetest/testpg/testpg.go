// Package testpg gives tests a PostgreSQL database of their own.
//
// The server is named by LANEBOX_TEST_POSTGRES_URL. Without it tests are
// skipped, or fail when LANEBOX_TEST_REQUIRE is "all". Generated SQL qualifies
// every table with its schema, so tests are kept apart by databases, not by
// schemas; each is dropped when its test ends.
package testpg

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Variable names the server that tests use.
const Variable = "LANEBOX_TEST_POSTGRES_URL"

// setupTime bounds creating and dropping a database.
const setupTime = 30 * time.Second

// URL creates a database for the test and returns its URL. The database is
// dropped when the test ends, with whoever is still connected.
func URL(t testing.TB) string {
	t.Helper()
	server := os.Getenv(Variable)
	if server == "" {
		if os.Getenv("LANEBOX_TEST_REQUIRE") == "all" {
			t.Fatalf("%s is not set, and LANEBOX_TEST_REQUIRE=all", Variable)
		}
		t.Skipf("%s is not set", Variable)
	}
	address, err := url.Parse(server)
	if err != nil {
		t.Fatalf("%s: %v", Variable, err)
	}
	var random [6]byte
	rand.Read(random[:])
	name := "lanebox_test_" + hex.EncodeToString(random[:])
	admin(t, server, "CREATE DATABASE "+name)
	t.Cleanup(func() { admin(t, server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	address.Path = "/" + name
	return address.String()
}

// admin runs one statement on the server's own database.
func admin(t testing.TB, server, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupTime)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatalf("%s: %v", Variable, err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Pool returns a pool on url that is closed when the test ends. Changes to its
// configuration are made by configure, which may be nil.
func Pool(t testing.TB, url string, configure func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if configure != nil {
		configure(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
