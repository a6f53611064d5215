package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/child"
)

// front is a process between the callers and a service: nginx, or the sidecar.
type front struct {
	addr string
	cmd  *exec.Cmd
	said bytes.Buffer // read after it has ended
	done chan struct{}
}

// freeAddr returns an address that nothing listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is this machine
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// startFront starts a program that listens on addr, and returns when it accepts connections.
func startFront(ctx context.Context, addr string, cmd *exec.Cmd) (*front, error) {
	f := &front{addr: addr, cmd: cmd, done: make(chan struct{})}
	f.cmd.Stdout, f.cmd.Stderr = &f.said, &f.said
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process
		_ = f.cmd.Wait()
		close(f.done)
	}()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		conn, err := net.Dial("tcp", addr) //nolint:noctx // it is this machine
		if err == nil {
			return f, conn.Close()
		}
		select {
		case <-f.done:
			return nil, fmt.Errorf("%s has ended: %s", cmd, f.said.String())
		case <-ctx.Done():
			f.stop()
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	f.stop()
	return nil, fmt.Errorf("%s does not listen on %s: %s", cmd, addr, f.said.String())
}

// pids are the process and its children, which are nginx's workers.
func (f *front) pids() []int {
	pid := f.cmd.Process.Pid
	all := []int{pid}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, field := range strings.Fields(string(b)) {
		if child, err := strconv.Atoi(field); err == nil {
			all = append(all, child)
		}
	}
	return all
}

// stop ends the process, and its children with it.
func (f *front) stop() {
	_ = f.cmd.Process.Signal(os.Interrupt)
	select {
	case <-f.done:
	case <-time.After(10 * time.Second):
		_ = f.cmd.Process.Kill()
		<-f.done
	}
}

// nginxConfig is a reverse proxy that keeps connections open on both sides and writes no log of
// requests. The parameters are the folder, the service and the address to listen on.
const nginxConfig = `daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	upstream service { server %[2]s; keepalive 64; keepalive_requests 100000000; }
	server {
		listen %[3]s;
		keepalive_requests 100000000;
		location / {
			proxy_pass http://service;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_set_header Host $host;
			proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
			proxy_set_header X-Forwarded-Proto $scheme;
		}
	}
}
`

// startNginx starts Debian's nginx before a service.
func startNginx(ctx context.Context, files, service string) (*front, error) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx"
	}
	if _, err := os.Stat(program); err != nil {
		return nil, errors.New("there is no nginx on this machine; run: apt-get install nginx-light")
	}
	dir := filepath.Join(files, "nginx")
	addr, err := freeAddr()
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConfig, dir, service, addr), 0o600); err != nil {
		return nil, err
	}
	return startFront(ctx, addr, exec.Command(program, "-p", dir, "-c", file, "-e", "stderr")) //nolint:noctx,gosec // stop ends it
}

// buildStet builds cmd/stet in its own module, and returns its path.
func buildStet(ctx context.Context, files string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/stet-go/stet").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	path := filepath.Join(files, "stet")
	build := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/stet")
	build.Dir = strings.TrimSpace(string(root))
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
}

// startStet starts the sidecar before a service. more are fields of its route.
func (s *sidecarPlace) startStet(ctx context.Context, service, more string) (_ *front, err error) {
	if s.stet == "" {
		if s.stet, err = buildStet(ctx, s.files); err != nil {
			return nil, err
		}
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("listen: %s\nadmin: {listen: \"off\"}\nupstream: {url: http://%s}\nscope: single-tenant\nstore: {url: %q}\nroutes:\n  - {path: %s%s}\n",
		addr, service, s.postgres.URL(s.database), path, more)
	file := filepath.Join(s.files, "stet-"+addr[strings.LastIndexByte(addr, ':')+1:]+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return startFront(ctx, addr, exec.Command(s.stet, "proxy", "--config", file)) //nolint:noctx,gosec // stop ends it
}

// startGo starts a reverse proxy of Go's standard library before a service.
func startGo(ctx context.Context, service string) (*front, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command, err := child.Order(forwardEnv, forward{addr, service})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self) //nolint:noctx // stop ends it
	cmd.Env = append(os.Environ(), command.Env...)
	if _, err := cmd.StdinPipe(); err != nil { // the child ends with it
		return nil, err
	}
	return startFront(ctx, addr, cmd)
}

// forwardEnv has the order of a reverse proxy of Go's standard library.
const forwardEnv = "STET_BENCH_ENDTOEND_FORWARD"

type forward struct{ Addr, Service string }

// serveForward forwards requests until the context ends.
func serveForward(ctx context.Context, o forward) error {
	l, err := net.Listen("tcp", o.Addr) //nolint:noctx // it is this machine
	if err != nil {
		return err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: connections}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: o.Service})
		r.SetXForwarded()
	}}
	ended := make(chan error, 1)
	go func() { ended <- (&http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}).Serve(l) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}
