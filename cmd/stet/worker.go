package main

import (
	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/proxy"
)

func newWorker() *cobra.Command {
	return newAside("worker", "Send accepted operations to the service", `worker sends the operations that 'stet proxy' has accepted (async: on a route) to the
service, beside the proxy or on other machines. It reads the same configuration, and
any number may run on one store. 'stet proxy' does this by itself, unless its
configuration says worker: elsewhere.

SIGTERM ends it after the running operations.`, proxy.Workers|proxy.Relay|proxy.Reconciler, nil)
}

// newAside returns a command that runs parts of a proxy without its listener for traffic.
// needs, if set, refuses configurations without work for it.
func newAside(name, short, long string, parts proxy.Parts, needs func(*proxy.Config) error) *cobra.Command {
	p := &proxyFlags{aside: true}
	cmd := &cobra.Command{
		Use: name + " --config FILE", Short: short, Long: long,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.setDefault("admin.listen", "off") // the configured address is the proxy's
			c, err := p.load()
			if err == nil && needs != nil {
				err = needs(c)
			}
			if err != nil {
				return err
			}
			return (&host{flags: p, config: c, parts: parts}).serve(cmd)
		},
	}
	p.shown(cmd.Flags(), "admin.listen", "address for operators, health and metrics (default off)")
	p.addBeside(cmd)
	return cmd
}
