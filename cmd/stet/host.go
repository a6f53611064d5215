package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/observe/stetlog"
	"github.com/stet-go/stet/observe/stetmetrics"
	"github.com/stet-go/stet/store"
)

// host runs a proxy, or some of its parts without the listener for traffic.
type host struct {
	flags  *proxyFlags
	config *proxy.Config
	front  bool // it serves traffic
	parts  proxy.Parts

	log   *slog.Logger
	level slog.LevelVar
	watching
	store   *storage
	traces  *traces
	servers *servers
	handler *proxy.Proxy
	closing []func() error // the last one first
}

// later registers a function that closes something at the end.
func (h *host) later(end func() error) { h.closing = append(h.closing, end) }

func (h *host) close() (err error) {
	for i := len(h.closing) - 1; i >= 0; i-- {
		err = errors.Join(err, h.closing[i]())
	}
	return err
}

// serve runs until the command's context ends, and then ends running work.
func (h *host) serve(cmd *cobra.Command) (err error) {
	ctx, c := cmd.Context(), h.config
	h.level.Set(levelOf(c))
	h.log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: &h.level}))
	audit := slog.NewTextHandler(cmd.ErrOrStderr(), nil) // no level hides it
	logUnsolicited(h.log, c.Upstream.URL)
	hup := make(chan os.Signal, 1) // before anything listens: until then a SIGHUP ends the process
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	h.files.use(c.Files())
	h.text.use([]string{h.flags.file})
	defer func() { err = errors.Join(err, h.close()) }()
	admin, err := h.open(ctx, cmd.OutOrStdout(), audit)
	if err != nil {
		return err
	}
	if addr := cmp.Or(c.Admin.Listen, proxy.DefaultAdmin); addr != "off" {
		if err := h.servers.start(addr, "admin", c.Admin.TLS, admin); err != nil {
			return fmt.Errorf("--admin-listen: %w", err)
		}
	}
	if h.front {
		if err := h.servers.start(cmp.Or(c.Listen, proxy.DefaultListen), "traffic", c.TLS, h.traces.around(h.handler)); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	h.greet(cmd)
	notify("READY=1")
	if err := h.wait(ctx, hup); err != nil {
		return err
	}
	notify("STOPPING=1")
	admin.Drain()
	if h.front {
		h.delay(ctx)
	}
	h.handler.Drain()
	if !h.front {
		h.log.Info("draining: running requests end first")
		return nil // closing the proxy waits for its parts
	}
	return h.servers.drain(h.config.DrainTime(), func() int { return h.handler.Counts().Runs })
}

// open opens everything but the listeners. audit is used without a file.
func (h *host) open(ctx context.Context, stdout io.Writer, audit slog.Handler) (*proxy.AdminHandler, error) {
	c := h.config
	var err error
	if h.store, err = openStore(ctx, c.Store); err != nil {
		return nil, err
	}
	h.later(h.store.close)
	if !h.front && h.store.kind == "memory" {
		return nil, usage{errors.New("the memory store belongs to one process, and has no operations in this one: name the store of the proxy")}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	logged := stetlog.New(stetlog.Options{Logger: h.log})
	metrics, err := stetmetrics.New(registry)
	if err != nil {
		return nil, err
	}
	h.later(scanMetrics(ctx, metrics, h.store))
	observer := observe.Join(metrics, observe.Func(func(ctx context.Context, ev observe.Event) {
		if ev.Kind != observe.Unsent { // the proxy itself logs these, a line for each target
			logged.Observe(ctx, ev)
		}
	}))
	o := proxy.Options{Observer: observer, ErrorLog: h.log, Audit: audit, Store: h.store.place, Parts: h.parts}
	if h.traces, err = startTraces(ctx, &o); err != nil {
		return nil, err
	}
	h.later(h.traces.end)
	if c.Admin.Audit != "" {
		book, err := h.openLog(c.Admin.Audit)
		if err != nil {
			return nil, fmt.Errorf("admin.audit: %w", err)
		}
		o.Audit = slog.NewJSONHandler(book, nil)
	}
	switch c.Log.Access {
	case "":
	case "-":
		o.Access = slog.NewJSONHandler(stdout, nil)
	default:
		file, err := h.openLog(c.Log.Access)
		if err != nil {
			return nil, fmt.Errorf("log.access: %w", err)
		}
		o.Access = slog.NewJSONHandler(file, nil)
	}
	front, err := h.store.cached()
	if err != nil {
		return nil, err
	}
	if h.handler, err = proxy.New(front, c, o); err != nil {
		return nil, err
	}
	h.later(h.handler.Close)
	h.servers = &servers{log: h.log, most: cmp.Or(c.Limits.Connections, proxy.DefaultConnections), failed: make(chan error, 2)}
	h.later(func() error { h.servers.close(); return nil })
	exportCounts(registry, h.handler, h.servers)
	return proxy.NewAdmin(h.handler, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})), nil
}

// greet logs the start, and warns of risky settings.
func (h *host) greet(cmd *cobra.Command) {
	c := h.config
	if h.front {
		h.log.Info("stet proxy protects "+c.String(), slog.String("store", h.store.place))
	} else {
		h.log.Info("stet "+cmd.Name()+" works for "+c.String(), slog.String("store", h.store.place))
	}
	if c.Admin.Exposed() {
		h.log.Warn("the admin listener can be reached from other hosts without TLS: tokens can be read on the way; set admin.tls")
	}
	h.store.warnOf(h.log)
}

// scanMetrics scans the store for the metrics at intervals, until it is stopped.
func scanMetrics(ctx context.Context, metrics *stetmetrics.Metrics, s *storage) (stop func() error) {
	browser, ok := store.As[store.Browser](s.Store)
	if !ok {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { metrics.Watch(ctx, browser, scanEvery) })
	return func() error {
		cancel()
		wg.Wait()
		return nil
	}
}
