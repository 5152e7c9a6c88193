//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// command returns a command that runs in the repository, in a process group of
// its own: when ctx ends, the whole group is asked to stop.
func (s *suite) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.root
	cmd.Env = s.env
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	return cmd
}

// do runs a command and passes its output on.
func (s *suite) do(ctx context.Context, name string, args ...string) error {
	fmt.Println("$", name, strings.Join(args, " "))
	return s.command(ctx, name, args...).Run()
}

// output runs a command and returns what it prints.
func (s *suite) output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := s.command(ctx, name, args...)
	var out strings.Builder
	cmd.Stdout = &out
	err := cmd.Run()
	return out.String(), err
}

// stream runs a command and hands its standard output to read while it runs.
func (s *suite) stream(ctx context.Context, read func(io.Reader) error, name string, args ...string) error {
	fmt.Println("$", name, strings.Join(args, " "))
	cmd := s.command(ctx, name, args...)
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := read(out)
	if err := cmd.Wait(); err != nil {
		return err
	}
	return readErr
}
