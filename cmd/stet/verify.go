package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/verify"
)

func newVerify() *cobra.Command {
	var o verify.Options
	var headers []string
	var probe string
	var out format
	cmd := &cobra.Command{
		Use:   "verify --url URL",
		Short: "Examine how any HTTP service treats an Idempotency-Key",
		Long: `verify sends duplicates, concurrent requests, other payloads and malformed keys to an
operation of an HTTP service, which need not use stet. It reports for each
point whether the service follows draft-ietf-httpapi-idempotency-key-header-07, or
the behaviour that clients rely on. It executes the operation some forty times: use a test system.

Each point sends an operation of its own. In a body, {{unique}} is replaced by a new
value for each, for services that refuse a known payload; the default bodies have it
as their reference. A point that needs a successful request is skipped if there is
none.

With --probe it listens on that address and counts requests: let the service
under test (a proxy, a gateway) forward to it.

The exit status is 1 if a point fails.`,
		Example: `  stet verify --url http://127.0.0.1:8080/v1/payments -H 'Authorization: Bearer test'
  stet proxy --upstream http://127.0.0.1:9999 --scope single-tenant & stet verify --url http://127.0.0.1:8080/ --probe 127.0.0.1:9999`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.URL == "" {
				return usage{errors.New("--url is missing: the operation to examine")}
			}
			o.Header = http.Header{}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, ":")
				if !ok {
					return usage{fmt.Errorf("--header %q has no colon; write it as 'Name: value'", h)}
				}
				o.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
			}
			return runVerify(cmd, o, probe, out.json())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.URL, "url", "", "the operation's URL")
	f.StringVar(&o.Method, "method", http.MethodPost, "its method")
	f.StringVar(&o.Body, "body", "", "body of a request that succeeds, perhaps with {{unique}} in it (default a small JSON object)")
	f.StringVar(&o.Other, "other-body", "", "body of another request, in the same form")
	f.StringVar(&o.Key, "key-header", "Idempotency-Key", "name of the key's header")
	f.StringArrayVarP(&headers, "header", "H", nil, "header of all requests, 'Name: value'; may be repeated")
	f.StringVar(&probe, "probe", "", "address to listen on, and to count requests")
	out.add(cmd, f)
	return cmd
}

func runVerify(cmd *cobra.Command, o verify.Options, probe string, asJSON bool) error {
	if probe != "" {
		o.Counter = &verify.Counter{}
		stop, err := listen(cmd.Context(), probe, o.Counter)
		if err != nil {
			return err
		}
		defer stop()
	}
	if !asJSON {
		o.Progress = func(name string) { fmt.Fprintf(cmd.ErrOrStderr(), "checking: %s\n", name) }
	}
	report, stopped := verify.Run(cmd.Context(), o)
	show := printPoints
	if asJSON {
		show = func(w io.Writer, r verify.Report) error { return json.NewEncoder(w).Encode(r) }
	}
	err := show(cmd.OutOrStdout(), report)
	switch {
	case stopped != nil:
		return stopped
	case err == nil && report.Failed > 0:
		return fmt.Errorf("%d of %d points failed", report.Failed, len(report.Points))
	}
	return err
}

// listen serves the counter until stop is called.
func listen(ctx context.Context, addr string, counter http.Handler) (stop func(), err error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--probe: %w", err)
	}
	srv := &http.Server{Handler: counter, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln) // until it is closed
	}()
	return func() { _ = srv.Close(); <-done }, nil
}

func printPoints(w io.Writer, r verify.Report) error {
	marks := map[verify.Result]string{verify.Pass: "✓", verify.Fail: "✗", verify.Warn: "!", verify.Skip: "-"}
	var b strings.Builder
	for _, p := range r.Points {
		fmt.Fprintf(&b, "%s %s\n", marks[p.Result], p.Name)
		if p.Detail != "" && (p.Result != verify.Pass || r.Executions) {
			fmt.Fprintf(&b, "    %s\n", p.Detail)
		}
		if p.Result == verify.Fail {
			fmt.Fprintf(&b, "    asked for by: %s\n", p.Source)
		}
	}
	if !r.Executions && len(r.Points) > 0 {
		b.WriteString("Executions were not counted: only responses were compared (see --probe).\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
