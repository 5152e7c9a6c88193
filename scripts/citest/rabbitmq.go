//go:build unix

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lanebox/lanebox/runtime/transporttest/testrabbit"
)

// provideRabbitMQ sees to it that the tests find RabbitMQ: binaries, which are
// installed with apt-get when they are missing, for tests that need a node of their
// own, and for all others the server they were given, or one node for the whole run.
// The function it returns stops what it started.
func (s *suite) provideRabbitMQ(ctx context.Context) (stop func(), err error) {
	err = testrabbit.Installed()
	if err != nil && os.Getuid() == 0 && onPath("apt-get") {
		fmt.Println(err)
		if err := s.install(ctx, "rabbitmq-server"); err != nil {
			fmt.Println("apt-get:", err)
		}
		err = testrabbit.Installed()
	}
	if os.Getenv(testrabbit.Variable) != "" {
		fmt.Println("using", testrabbit.Variable)
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	node, err := testrabbit.Start(ctx)
	if err != nil {
		return nil, err
	}
	s.env = append(s.env, testrabbit.Variable+"="+node.URL())
	fmt.Println("started RabbitMQ on", node.Address())
	return node.Close, nil
}
