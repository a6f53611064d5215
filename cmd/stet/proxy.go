package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet/proxy"
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
			return (&host{flags: p, config: c, front: true, parts: proxy.Workers | proxy.Relay | proxy.Reconciler}).serve(cmd)
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
