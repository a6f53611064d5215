package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
)

const (
	startWithin = 10 * time.Second
	startPause  = 20 * time.Millisecond
	healthPause = 5 * time.Millisecond
)

// server is the payments service, or the proxy before it, as a process of its
// own, which can be killed and started again at the same address.
type server struct {
	name    string
	command []string
	flags   []string
	addrArg string // the flag for the address
	addr    string // once started

	crash.Lane
}

// start starts the service and waits until it answers.
func (s *server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	args := slices.Concat(s.command[1:], s.flags)
	if s.addr != "" {
		args = append(args, s.addrArg, s.addr)
	}
	command := child.Command{Path: s.command[0], Args: args}
	err := s.Start(ctx, command)
	for s.addr != "" && errors.Is(err, child.ErrExited) && crash.Pause(ctx, startPause) == nil { // its port may be free a little later
		err = s.Start(ctx, command)
	}
	if err != nil {
		return fmt.Errorf("the %s did not start: %w", s.name, err)
	}
	s.addr = s.Process().Addr
	if err := s.healthy(ctx); err != nil {
		s.Kill()
		return fmt.Errorf("the %s does not answer: %w", s.name, err)
	}
	return nil
}

// healthy waits until the service answers.
func (s *server) healthy(ctx context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/healthz", nil)
		if err != nil {
			return err
		}
		if res, err := client.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		if err := crash.Pause(ctx, healthPause); err != nil {
			return err
		}
	}
}
