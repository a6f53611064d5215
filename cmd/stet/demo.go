package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sync"

	"github.com/spf13/cobra"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/demo"
)

// The hidden commands that the demo starts as processes of their own.
const (
	demoService = "demo-service"
	demoProxy   = "demo-proxy"
)

func newDemo() *cobra.Command {
	c := demo.Config{}
	var asJSON, serve, proxied bool
	var addr string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See what retries do to a service, without stet and with it",
		Long: `demo starts a small payments service on a database in a temporary folder and
lets impatient clients loose on it: they send each payment several times, time
out, hang up and try again, while the service is killed and started again. It
does so without stet and then with it, and counts what the ledger says. With
--proxy stet stands before the service, and both are killed.

The exit status is 1 if stet let a payment run twice or lost one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case serve && asJSON:
				return usage{errors.New("--json has nothing to print with --serve; leave one out")}
			case addr != "" && !serve:
				return usage{errors.New("--addr is for --serve; add that, or leave --addr out")}
			case serve && proxied:
				return usage{errors.New("--serve leaves up a service with stet in it; leave --proxy out")}
			case serve && c.Async:
				return usage{errors.New("--serve leaves up a service that answers at once; leave --async out")}
			case serve:
				return demo.Serve(cmd.Context(), addr, cmd.OutOrStdout())
			}
			return storm(cmd, c, proxied, asJSON)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Payments, "payments", 200, fmt.Sprintf("how many payments, 1 to %d", demo.MaxPayments))
	f.IntVar(&c.Attempts, "attempts", 5, fmt.Sprintf("how many clients send each payment, 1 to %d", demo.MaxAttempts))
	f.IntVar(&c.Kills, "kills", 3, fmt.Sprintf("how often something is killed in a storm, 0 to %d", demo.MaxKills))
	f.Uint64Var(&c.Seed, "seed", 0, "seed of what the clients do; 0 picks one")
	f.BoolVar(&c.Async, "async", false, "have the service answer 202 and charge afterwards")
	f.BoolVar(&proxied, "proxy", false, "have stet proxy protect the service")
	f.StringVar(&c.Store, "store", "", "with --proxy: as for stet proxy (default a temporary file)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object instead of the table")
	f.BoolVar(&serve, "serve", false, "leave the protected service up, with curl lines to try")
	f.StringVar(&addr, "addr", "", "where --serve listens (default "+demo.DefaultAddr+")")
	return cmd
}

// storm runs both storms and prints the report.
func storm(cmd *cobra.Command, c demo.Config, proxied, asJSON bool) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the path of this program, which is to be the service too: %w", err)
	}
	c.Service = []string{exe, demoService}
	if proxied {
		c.Proxy = []string{exe, demoProxy}
	}
	c.Progress = cmd.ErrOrStderr()
	c.Terminal = isTerminal(c.Progress)
	if err := c.Check(); err != nil {
		return usage{err}
	}
	report, err := demo.Run(cmd.Context(), c)
	if err != nil {
		return err
	}
	if !asJSON {
		_, _ = fmt.Fprintln(c.Progress)
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

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
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

// newDemoProxy is the command proxy, as a child of the demo.
func newDemoProxy() *cobra.Command {
	return &cobra.Command{
		Use:                demoProxy,
		Hidden:             true,
		DisableFlagParsing: true, // proxy parses them
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, leave := child.WithParent(cmd.Context(), cmd.InOrStdin())
			defer leave()
			root := newRoot()
			root.SetArgs(append([]string{"proxy"}, args...))
			root.SetOut(io.Discard)
			root.SetErr(&announcer{log: cmd.ErrOrStderr(), ready: cmd.OutOrStdout()})
			return root.ExecuteContext(ctx)
		},
	}
}

// announcer reads in the log of a proxy where it listens, and tells its parent.
type announcer struct {
	log, ready io.Writer

	mu   sync.Mutex
	told bool
}

var listensFor = regexp.MustCompile(`"listening for traffic" url=http://(\S+)`)

// Write implements io.Writer; a handler of log/slog writes whole lines.
func (a *announcer) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := listensFor.FindSubmatch(p); m != nil && !a.told {
		a.told = true
		child.Ready(a.ready, string(m[1]))
	}
	return a.log.Write(p)
}
