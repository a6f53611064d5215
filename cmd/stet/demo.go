package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/stet-go/stet/internal/demo"
)

// demoService is the hidden command of the demo's service, which is a process of its own.
const demoService = "demo-service"

func newDemo() *cobra.Command {
	c := demo.Config{}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the effect of retries, without stet and with it",
		Long: `demo starts a small payments service on a database in a temporary folder.
Clients send each payment several times, time out and retry, while the service
is killed and started again. demo does so without stet and then with it, and
compares the responses with the ledger.

The exit status is 1 if stet let a payment run twice or lost one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd, c, asJSON)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Payments, "payments", 200, fmt.Sprintf("how many payments, 1 to %d", demo.MaxPayments))
	f.IntVar(&c.Clients, "clients", 5, fmt.Sprintf("how many clients send each payment, 1 to %d", demo.MaxClients))
	f.IntVar(&c.Kills, "kills", 3, fmt.Sprintf("how often the service is killed, 0 to %d", demo.MaxKills))
	f.Uint64Var(&c.Seed, "seed", 0, "seed of the clients' choices; 0 picks one")
	f.BoolVar(&asJSON, "json", false, "print one JSON object instead of the table")
	return cmd
}

func runDemo(cmd *cobra.Command, c demo.Config, asJSON bool) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the path of this program, which is the service too: %w", err)
	}
	c.Service, c.Progress = []string{exe, demoService}, cmd.ErrOrStderr()
	if err := c.Check(); err != nil {
		return usage{err}
	}
	report, err := demo.Run(cmd.Context(), c)
	if err != nil {
		return err
	}
	return printReport(cmd.OutOrStdout(), report, asJSON)
}

// printReport prints the report, and returns an error if stet broke a promise.
func printReport(w io.Writer, report demo.Report, asJSON bool) (err error) {
	if asJSON {
		err = json.NewEncoder(w).Encode(report)
	} else {
		err = report.WriteTable(w)
	}
	if err == nil && len(report.Violations) > 0 {
		err = fmt.Errorf("stet broke its promise, seen with --seed %d", report.Seed)
	}
	return err
}

func newDemoService() *cobra.Command {
	return &cobra.Command{
		Use:                demoService,
		Hidden:             true,
		DisableFlagParsing: true, // it parses its own
		RunE: func(cmd *cobra.Command, args []string) error {
			return demo.ServiceMain(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
