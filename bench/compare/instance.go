package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/rig"
)

// instance is one of the two processes of a service. With a sidecar it is two processes.
type instance struct {
	addr    string
	service *child.Process
	front   *child.Process // nil: none
	start   func(context.Context) (*child.Process, error)
}

// instance returns the i-th process of a contender. It is started again if it has ended.
func (p *place) instance(ctx context.Context, c contender, i int) (*instance, error) {
	pair := p.instances[c.name]
	if pair == nil {
		pair = new([2]*instance)
		p.instances[c.name] = pair
	}
	var err error
	if pair[i] == nil {
		pair[i], err = p.launch(ctx, c)
		return pair[i], err
	}
	return pair[i], pair[i].ensure(ctx)
}

// end ends the processes of a contender.
func (p *place) end(c contender) {
	for _, i := range p.instances[c.name] {
		i.kill()
	}
	delete(p.instances, c.name)
}

func (p *place) launch(ctx context.Context, c contender) (*instance, error) {
	env := []string{"WAY=" + c.name, "DATABASE_URL=" + p.url, "REDIS_URL=redis://" + p.redis.Addr(), "FILES=" + p.dir,
		fmt.Sprint("LEASE=", lease.Seconds()), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" + filepath.Join(p.clients, "python")}
	file := filepath.Join(p.services, c.program)
	command := child.Command{Path: p.python, Args: []string{file}}
	switch c.program {
	case inNode:
		command.Path = "node"
	case "":
		var err error
		if command, err = child.Order(childEnv, order{c.name, p.url, p.redis.Addr(), lease}); err != nil {
			return nil, err
		}
	}
	upstream := ""
	if c.sidecar {
		var err error
		if upstream, err = rig.FreeAddr(); err != nil {
			return nil, err
		}
		env = append(env, "PORT="+upstream[strings.LastIndexByte(upstream, ':')+1:])
		env[0] = "WAY=plain"
	}
	command.Env = append(command.Env, env...)
	i := &instance{start: func(ctx context.Context) (*child.Process, error) { return child.Start(ctx, command) }}
	if err := i.ensure(ctx); err != nil {
		return nil, err
	}
	if c.sidecar {
		return i, p.launchSidecar(ctx, i, upstream)
	}
	return i, nil
}

func (p *place) launchSidecar(ctx context.Context, i *instance, upstream string) (err error) {
	if i.addr, err = rig.FreeAddr(); err != nil {
		return err
	}
	config := fmt.Sprintf("listen: %s\nadmin: {listen: \"off\"}\nupstream: {url: http://%s}\nscope: header:X-Account\nstore: {url: %q}\nroutes:\n  - {path: /payments, lease: %s}\n  - {path: /refunds, lease: %[4]s}\n", i.addr, upstream, p.url, lease)
	file := filepath.Join(p.dir, "stet-"+i.addr[strings.LastIndexByte(i.addr, ':')+1:]+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	command := child.Command{Path: p.stet, Args: []string{"proxy", "--config", file}, Listens: func(line string) bool { return strings.Contains(line, i.addr) && strings.Contains(line, "listening") }}
	i.front, err = child.Start(ctx, command)
	return err
}

// ensure starts the service, if it does not run.
func (i *instance) ensure(ctx context.Context) error {
	if i.service != nil {
		select {
		case <-i.service.Exited():
		default:
			return nil
		}
	}
	s, err := i.start(ctx)
	if err != nil {
		return err
	}
	i.service = s
	if i.front == nil {
		i.addr = s.Addr
	}
	return nil
}

func (i *instance) kill() {
	if i == nil {
		return
	}
	for _, p := range []*child.Process{i.front, i.service} {
		if p != nil {
			p.Kill()
		}
	}
}

func (i *instance) signal(sig syscall.Signal) error {
	for _, p := range []*child.Process{i.front, i.service} {
		if p == nil {
			continue
		}
		if err := p.Signal(sig); err != nil {
			return err
		}
	}
	return nil
}

// request is a payment.
type request struct {
	key, account, path, do string
	seconds                float64
	amount                 int
	departs                time.Duration // the client closes its connection after this time; 0: never
}

// answer is a response. Without one its status is 0.
type answer struct {
	status int
	header http.Header
	body   string
}

// final reports whether the answer is the result of an execution.
func (a answer) final() bool {
	return a.status >= 200 && a.status < 300 || a.status == http.StatusPaymentRequired
}

func (a answer) equal(b answer) bool {
	for _, name := range []string{"Content-Type", "Location", "X-Receipt"} {
		if a.header.Get(name) != b.header.Get(name) {
			return false
		}
	}
	return a.status == b.status && a.body == b.body
}

const answerTimeout = 30 * time.Second

func (i *instance) send(ctx context.Context, r request) answer {
	timeout := answerTimeout
	if r.departs > 0 {
		timeout = r.departs
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body := fmt.Sprintf(`{"amount": %d, "do": %q, "seconds": %v}`, r.amount, r.do, r.seconds)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+i.addr+r.path, bytes.NewReader([]byte(body)))
	if err != nil {
		panic(err) // its parts are valid
	}
	req.GetBody = nil // the transport repeats no request by itself
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", r.key)
	req.Header.Set("X-Account", r.account)
	req.Close = true
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return answer{header: http.Header{}}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{header: http.Header{}}
	}
	return answer{res.StatusCode, res.Header, string(b)}
}
