package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/observe/stetlog"
)

func newReconcile() *cobra.Command {
	p := &proxyFlags{aside: true}
	var out format
	var dryRun bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "reconcile --config FILE",
		Short: "Ask the service once about operations with an unknown outcome",
		Long: `reconcile scans the operations with an expired run once. It calls the verify URL of
each route and settles the operation, or lets a retry run it. 'stet proxy' does this
continuously if its configuration has reconcile:; this command is for cron. Any
number can run at once, beside any number of proxies.

The record must store what the service needs to find the operation: see keep_key,
keep_scope and verify.by in 'stet check --reference'. Other operations, and routes
without verify, are skipped. The exit status is 1 if something failed: the service
did not answer, or not clearly, or the store could not be read or written.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit <= 0 {
				return usage{errors.New("--for must be positive")}
			}
			c, err := p.load()
			if err != nil {
				return err
			}
			return reconcileOnce(cmd, c, out, dryRun, limit)
		},
	}
	p.addBeside(cmd)
	f := cmd.Flags()
	f.BoolVar(&dryRun, "dry-run", false, "ask, print the changes, and make none")
	f.DurationVar(&limit, "for", 10*time.Minute, "time limit; the rest is for the next pass")
	out.add(cmd, f)
	return cmd
}

func reconcileOnce(cmd *cobra.Command, c *proxy.Config, out format, dryRun bool, limit time.Duration) error {
	return withStore(cmd, c.Store, func(s *storage) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), limit)
		defer cancel()
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
		logUnsolicited(log, c.Upstream.URL)
		defer progress(cmd.ErrOrStderr(), func() string { return "calling verifiers" })()
		did, err := proxy.ReconcileOnce(ctx, s.Store, c, proxy.ReconcileOptions{DryRun: dryRun, ErrorLog: log, Observer: stetlog.New(stetlog.Options{Logger: log})})
		over := errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && cmd.Context().Err() == nil
		if over {
			err = nil
		}
		if did.Errors > 0 {
			err = errors.Join(err, fmt.Errorf("%d operations could not be asked about, or not be resolved", did.Errors))
		}
		return errors.Join(printReconciled(cmd, out, did, dryRun, over), err)
	})
}

func printReconciled(cmd *cobra.Command, out format, did proxy.Reconciled, dryRun, over bool) error {
	if out.json() {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
			Looked     int  `json:"looked"`
			Completed  int  `json:"completed"`
			Failed     int  `json:"failed"`
			Again      int  `json:"again"`
			Unknown    int  `json:"unknown"`
			Changed    int  `json:"changed"`
			Errors     int  `json:"errors"`
			Blind      int  `json:"blind"`
			Unverified int  `json:"unverified"`
			Skipped    int  `json:"skipped"`
			DryRun     bool `json:"dry_run"`
			More       bool `json:"more"`
		}{did.Looked, did.Completed, did.Failed, did.Again, did.Left, did.Changed, did.Errors, did.Blind, did.Alone, did.Skipped, dryRun, over})
	}
	w := cmd.OutOrStdout()
	if dryRun {
		fmt.Fprintln(w, "These changes would be made; nothing was changed.")
	}
	fmt.Fprintf(w, "%d expired runs: %d happened (%d completed, %d failed), %d did not happen and may run again, %d left unknown, %d changed in the meantime, %d errors\n",
		did.Looked, did.Completed+did.Failed, did.Completed, did.Failed, did.Again, did.Left, did.Changed, did.Errors)
	if did.Blind > 0 {
		fmt.Fprintf(w, "%d were skipped: their records do not store scope and key; see keep_key and keep_scope\n", did.Blind)
	}
	if did.Alone > 0 {
		fmt.Fprintf(w, "%d were skipped: their routes have no verifier\n", did.Alone)
	}
	if did.Skipped > 0 {
		fmt.Fprintf(w, "%d were left for the next pass, because their verifiers did not answer\n", did.Skipped)
	}
	if over {
		fmt.Fprintln(w, "the time limit is reached; the next pass does the rest")
	}
	return nil
}
