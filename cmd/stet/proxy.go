package main

import (
	"cmp"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/proxy"
)

// Limits of the listeners.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeader         = 64 << 10 // bytes
	maxStreams        = 100      // of a connection of HTTP/2
)

// scanEvery is how often the store is scanned for the metrics.
const scanEvery = time.Minute

// proxyFlags are flags for the fields of a configuration.
type proxyFlags struct {
	settings
	aside bool // of a process beside the proxy
}

func newProxy() *cobra.Command {
	p, consume := &proxyFlags{}, false
	cmd := &cobra.Command{
		Use:   "proxy --upstream URL",
		Short: "Protect an HTTP service in any language",
		Long: `proxy runs in front of an HTTP service. Requests with an Idempotency-Key are
executed once, and every retry gets the same response. Nothing is sent twice.

  stet proxy --upstream http://127.0.0.1:3000 --scope header:X-Account

Without a configuration, POST and PATCH of every path are protected if they have a
key. 'stet check --reference' explains the configuration; each of its fields is also
a flag. SIGHUP reads it again. SIGTERM lets running requests end, after drain_delay.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.load()
			if err != nil {
				return err
			}
			if err := c.CheckFront(); err != nil {
				return err
			}
			parts := proxy.Workers | proxy.Relay | proxy.Reconciler
			if consume {
				parts |= proxy.Consumers
				if err := consumesAny(c); err != nil {
					return err
				}
			}
			return (&host{flags: p, config: c, front: true, parts: parts}).serve(cmd)
		},
	}
	p.add(cmd)
	cmd.Flags().BoolVar(&consume, "consume", false, "also consume messages, as 'stet consume' does")
	return cmd
}

// add adds the flags of commands that serve.
func (p *proxyFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	p.shown(f, "upstream.url", "URL of the service")
	f.StringVar(&p.file, "config", "", "configuration; the other flags override it")
	p.shown(f, "store.url", storeHelp+" (default $"+storeVariable+" or "+proxy.DefaultStore+")")
	p.shown(f, "listen", "address for traffic (default "+proxy.DefaultListen+")")
	p.shown(f, "admin.listen", "for operators (default "+proxy.DefaultAdmin+"), or off; token $"+adminVariable)
	p.shown(f, "scope", "the owner of keys: jwt:CLAIM, header:NAME, authorization, basic, mtls, host or single-tenant; several with commas. Required")
	p.hidden(f, "")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"jwt:", "header:", "authorization", "basic", "mtls", "host", "single-tenant"}, cobra.ShellCompDirectiveNoFileComp))
}

// addBeside adds the flags of commands that use the configuration of a proxy.
func (p *proxyFlags) addBeside(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.file, "config", "", "configuration of 'stet proxy'; the other flags override it")
	p.shown(f, "upstream.url", "URL of the service (default: that of the configuration)")
	p.shown(f, "store.url", storeHelp+" (default: that of the configuration, or $"+storeVariable+" or "+proxy.DefaultStore+")")
	p.hidden(f, "")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
}

// load returns the configuration with the flags applied, if it is valid.
func (p *proxyFlags) load() (*proxy.Config, error) {
	if p.aside && p.file == "" {
		return nil, usage{errors.New("which configuration? Give --config, the one of 'stet proxy'")}
	}
	c, err := p.config()
	if err != nil {
		return nil, err
	}
	if c.Admin.TokenFile == "" {
		c.Admin.Token = cmp.Or(c.Admin.Token, os.Getenv(adminVariable))
	}
	if p.aside {
		c.Worker = "inside" // this process is the worker elsewhere
	}
	if c.Upstream.URL == "" {
		return nil, usage{errors.New("where is the service? Give --upstream, or --config with upstream.url in it")}
	}
	if err := c.Check(); err != nil {
		if p.file == "" {
			err = usage{err}
		}
		return nil, err
	}
	return c, nil
}
