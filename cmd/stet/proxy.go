package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/stet-go/stet/proxy"
	"github.com/stet-go/stet/stetlog"
	"github.com/stet-go/stet/stetmetrics"
	"github.com/stet-go/stet/store"
)

// Limits of the listeners.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeader         = 64 << 10 // bytes
	maxStreams        = 100      // of a connection of HTTP/2
)

// surveyEvery is how often the metrics look through the store.
const surveyEvery = time.Minute

// proxyFlags are those that say what a configuration could say, too.
type proxyFlags struct {
	config, upstream, store, listen, admin, scope string
}

func newProxy() *cobra.Command {
	p := &proxyFlags{}
	cmd := &cobra.Command{
		Use:   "proxy --upstream URL",
		Short: "Protect an HTTP service in any language",
		Long: `proxy stands in front of an HTTP service. Requests with an Idempotency-Key are
executed once, and every retry gets the same response. Nothing is sent twice.

  stet proxy --upstream http://127.0.0.1:3000 --scope header:X-Account

Without a configuration, POST and PATCH of every path are protected where there
is a key. Whose key it is says the Authorization header, unless --scope names
something else. 'stet check --reference' explains the configuration, which is
read again on SIGHUP. SIGTERM lets requests end first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.read()
			if err != nil {
				return err
			}
			return p.serve(cmd, c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.upstream, "upstream", "", "URL of the service")
	f.StringVar(&p.config, "config", "", "configuration; the other flags go before it")
	f.StringVar(&p.store, "store", "", storeHelp+" (default $"+storeVariable+" or "+proxy.DefaultStore+")")
	f.StringVar(&p.listen, "listen", "", "address for traffic (default "+proxy.DefaultListen+")")
	f.StringVar(&p.admin, "admin-listen", "", "address for operators, health and metrics, or off (default "+proxy.DefaultAdmin+"); token in $"+adminVariable)
	f.StringVar(&p.admin, "admin", "", "")
	_ = f.MarkHidden("admin") // what admin-listen was called
	f.StringVar(&p.scope, "scope", "", "authorization, basic, mtls, host, header:NAME or single-tenant; several with commas")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"authorization", "basic", "mtls", "host", "header:", "single-tenant"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// read returns the configuration, with the flags put in.
func (p *proxyFlags) read() (*proxy.Config, error) {
	c := &proxy.Config{}
	if p.config != "" {
		var err error
		if c, err = readConfig(p.config); err != nil {
			return nil, err
		}
	}
	c.Upstream.URL = cmp.Or(p.upstream, c.Upstream.URL)
	c.Store = cmp.Or(p.store, c.Store, os.Getenv(storeVariable))
	c.Listen = cmp.Or(p.listen, c.Listen)
	c.Admin.Listen = cmp.Or(p.admin, c.Admin.Listen)
	if c.Admin.TokenFile == "" {
		c.Admin.Token = cmp.Or(c.Admin.Token, os.Getenv(adminVariable))
	}
	if p.scope != "" {
		s, err := proxy.ParseScope(p.scope)
		if err != nil {
			return nil, usage{fmt.Errorf("--scope: %w", err)}
		}
		c.Scope = s
	}
	if c.Upstream.URL == "" {
		return nil, usage{errors.New("where is the service? Give --upstream, or --config with upstream.url in it")}
	}
	if err := c.Check(); err != nil {
		if p.config == "" {
			err = usage{err}
		}
		return nil, err
	}
	return c, nil
}

// serve runs the proxy until the context ends and its requests have.
func (p *proxyFlags) serve(cmd *cobra.Command, c *proxy.Config) (err error) {
	ctx, log := cmd.Context(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	logUnasked(cmd.ErrOrStderr())
	store, err := openStore(ctx, c.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close()) }()
	registry := prometheus.NewRegistry()
	metrics, err := stetmetrics.New(registry, stetmetrics.Options{Next: stetlog.New(stetlog.Options{Logger: log})})
	if err != nil {
		return err
	}
	stop := survey(ctx, metrics, store)
	defer stop()
	o := proxy.Options{Observer: metrics, ErrorLog: log, Store: store.place}
	traces, err := startTraces(ctx, &o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, traces.end()) }()
	if c.Admin.Audit != "" {
		book, wrong := openAudit(c.Admin.Audit)
		if wrong != nil {
			return fmt.Errorf("admin.audit: %w", wrong)
		}
		defer func() { err = errors.Join(err, book.Close()) }()
		o.Audit = slog.NewJSONHandler(book, nil)
	}
	handler, err := proxy.New(store.Store, c, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handler.Close()) }()
	countProxy(registry, handler)
	admin := proxy.NewAdmin(handler, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &servers{log: log, most: cmp.Or(c.Limits.Connections, proxy.DefaultConnections), failed: make(chan error, 2)}
	defer s.close()
	if addr := cmp.Or(c.Admin.Listen, proxy.DefaultAdmin); addr != "off" {
		if err := s.start(addr, "admin", c.Admin.TLS, admin); err != nil {
			return fmt.Errorf("--admin-listen: %w", err)
		}
	}
	if err := s.start(cmp.Or(c.Listen, proxy.DefaultListen), "traffic", c.TLS, traces.around(handler)); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	countConnections(registry, s)
	log.Info("stet proxy protects "+c.String(), slog.String("store", store.place))
	if c.Admin.Exposed() {
		log.Warn("the admin listener can be reached from other hosts without TLS: tokens can be read on the way; set admin.tls")
	}
	if c.Scope == nil && len(c.Routes) == 0 {
		log.Info("a key belongs to the value of the Authorization header, and without one is refused; --scope says otherwise")
	}
	if store.kind == "memory" {
		log.Warn("the store is memory: what was executed is forgotten with this process")
	}
	if err := p.wait(ctx, handler, s, log); err != nil {
		return err
	}
	admin.Drain()
	handler.Drain()
	return s.drain(cmp.Or(time.Duration(c.Drain), proxy.DefaultDrain), func() int { return handler.Counts().Runs })
}

// survey has the metrics look through the store now and then, until it is stopped.
func survey(ctx context.Context, metrics *stetmetrics.Metrics, s *storage) (stop func()) {
	browser, ok := store.As[store.Browser](s.Store)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { metrics.Watch(ctx, browser, surveyEvery) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// wait returns when the proxy is to end, and reloads the configuration until then.
func (p *proxyFlags) wait(ctx context.Context, handler *proxy.Proxy, s *servers, log *slog.Logger) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return err
		case <-hup:
			if p.config == "" {
				log.Warn("SIGHUP, but there is no configuration to read again; start with --config")
				continue
			}
			c, err := p.read()
			if err == nil {
				err = handler.Reload(c)
			}
			if err != nil {
				log.Error("the configuration was not reloaded; the one before stands", slog.Any("error", err))
				continue
			}
			log.Info("the configuration was reloaded", slog.String("protects", c.String()))
		}
	}
}
