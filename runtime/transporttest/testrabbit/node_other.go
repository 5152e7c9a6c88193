//go:build !unix

package testrabbit

import (
	"context"
	"errors"
)

// errSystem is why no node is started here.
var errSystem = errors.New("this system cannot start RabbitMQ for tests; set " + Variable)

// Installed returns an error that says what is missing.
func Installed() error { return errSystem }

// A Node is a RabbitMQ server; there is none on this system.
type Node struct{}

// Start fails on this system.
func Start(context.Context) (*Node, error) { return nil, errSystem }

// Start fails on this system.
func (*Node) Start(context.Context) error { return errSystem }

// Stop does nothing on this system.
func (*Node) Stop() {}

// Kill does nothing on this system.
func (*Node) Kill() {}

// Close does nothing on this system.
func (*Node) Close() {}

// Address is empty on this system.
func (*Node) Address() string { return "" }

// URL is empty on this system.
func (*Node) URL() string { return "" }

// Control fails on this system.
func (*Node) Control(context.Context, ...string) (string, error) { return "", errSystem }
