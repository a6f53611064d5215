package main

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/seal"
)

// keys is what the commands below keys have in common.
type keys struct {
	storeFlags
	scope string
	id    string // instead of scope and key
}

func newKeys() *cobra.Command {
	k := &keys{}
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Look at operations, and resolve those that nobody knows about",
		Long: `An operation is named by its key and --scope, which are digested here and stay
here, or by --id, the digest, as ls and the logs show it. A change needs a
--reason, is made only if the record is still what was shown, and is written down
(who, when, why, from, to) as JSON, to --audit or else to the standard error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	k.add(cmd.PersistentFlags())
	cmd.SetUsageTemplate(strings.Replace(cmd.UsageTemplate(), "\n\nGlobal Flags:", "", 1)) // one list; it has to fit a screen
	cmd.AddCommand(k.newList(), k.newGet(), k.newWatch(), k.newResolve(), k.newRelease(), k.newExpire())
	return cmd
}

// name adds the flags that name one operation.
func (k *keys) name(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.scope, "scope", "", "whose key it is, as the service says it")
	cmd.Flags().StringVar(&k.id, "id", "", "digest of the operation, instead of a key and --scope")
}

// find returns the digest of the operation that is named.
func (k *keys) find(args []string) (id stet.ID, err error) {
	switch {
	case k.id != "" && (len(args) > 0 || k.scope != ""):
		return id, usage{errors.New("either --id, or a key and --scope")}
	case k.id != "":
		b, err := hex.DecodeString(k.id)
		if err != nil || len(b) != len(id) {
			return id, usage{fmt.Errorf("--id has to be %d hexadecimal digits, as 'stet keys ls' shows them", 2*len(id))}
		}
		return stet.ID(b), nil
	case len(args) == 0 || k.scope == "":
		return id, usage{errors.New("which operation? Give its key and --scope, or --id")}
	}
	return stet.Digest(k.namespace, k.scope, args[0]), nil
}

// record is one that is there.
func (k *keys) record(cmd *cobra.Command, s stet.Store, args []string) (stet.Record, error) {
	id, err := k.find(args)
	if err != nil {
		return stet.Record{}, err
	}
	rec, err := s.Read(cmd.Context(), id)
	if err == nil && rec.State == stet.None {
		err = errors.New("the store knows no such operation; are --scope and --namespace those of the service?")
	}
	return rec, err
}

func (k *keys) newList() *cobra.Command {
	var states []string
	var scope string
	q := stet.Query{}
	limit := 0
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List operations",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > maxList {
				return usage{fmt.Errorf("--limit is %d; give it 1 to %d", limit, maxList)}
			}
			for _, name := range states {
				s, err := parseState(name)
				if err != nil {
					return usage{err}
				}
				q.States = append(q.States, s)
			}
			if scope != "" {
				q.Scope = stet.DigestScope(k.namespace, scope)
			}
			if err := q.Check(); err != nil {
				return usage{fmt.Errorf("--older and --newer: %w", err)}
			}
			return k.with(cmd, func(s *storage) error { return k.list(cmd, s, q, limit) })
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&states, "state", nil, "only these: running, completed, failed, retryable, unknown")
	f.StringVar(&scope, "scope", "", "only those of this scope")
	f.DurationVar(&q.OlderThan, "older", 0, "only those claimed longer ago, like 10m")
	f.DurationVar(&q.NewerThan, "newer", 0, "only those claimed since then")
	f.IntVar(&limit, "limit", stet.DefaultBrowse, fmt.Sprintf("how many at most, 1 to %d", maxList))
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"running", "completed", "failed", "retryable", "unknown"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

const maxList = 100_000

func parseState(name string) (stet.State, error) {
	for s := stet.Running; s <= stet.Unknown; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("--state: %q is none of running, completed, failed, retryable and unknown", name)
}

// list prints up to limit records.
func (k *keys) list(cmd *cobra.Command, s *storage, q stet.Query, limit int) error {
	browser, ok := s.Store.(stet.Browser)
	if !ok {
		return fmt.Errorf("the store %s cannot be looked through; name an operation, with get", s.kind)
	}
	views := []view{}
	more := true
	for more && len(views) < limit {
		q.Limit = min(limit-len(views), stet.MaxBrowse)
		page, err := browser.Browse(cmd.Context(), q)
		if err != nil {
			return err
		}
		for _, rec := range page.Records {
			views = append(views, newView(rec))
		}
		q.After, more = page.Next, page.Next != ""
	}
	out := cmd.OutOrStdout()
	if k.format.json() {
		return json.NewEncoder(out).Encode(struct {
			Records []view `json:"records"`
			More    bool   `json:"more"`
		}{views, more})
	}
	if err := printViews(out, views); err != nil {
		return err
	}
	if more {
		cmd.PrintErrf("there may be more; --limit is %d\n", limit)
	}
	return nil
}

func (k *keys) newGet() *cobra.Command {
	var body bool
	cmd := &cobra.Command{
		Use:   "get [KEY]",
		Short: "Show one operation",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return k.with(cmd, func(s *storage) error {
				rec, err := k.record(cmd, s, args)
				if err != nil {
					return err
				}
				v := newView(rec)
				if body {
					result, err := v.open(rec)
					if err != nil {
						return err
					}
					v.Result = result
				}
				return k.show(cmd.OutOrStdout(), v)
			})
		},
	}
	k.name(cmd)
	cmd.Flags().BoolVar(&body, "body", false, "show the stored result, too; it may hold what nobody should see")
	return cmd
}

// show prints one record.
func (k *keys) show(out io.Writer, v view) error {
	if k.format.json() {
		return json.NewEncoder(out).Encode(v)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range v.rows() {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	return w.Flush()
}

func (k *keys) newWatch() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "watch [KEY]",
		Short: "Print each change of one operation until it is settled",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 10*time.Millisecond {
				return usage{fmt.Errorf("--every is %v; give it 10ms or more", every)}
			}
			return k.with(cmd, func(s *storage) error { return k.watch(cmd, s, args, every) })
		},
	}
	k.name(cmd)
	cmd.Flags().DurationVar(&every, "every", time.Second, "how often to look")
	return cmd
}

// watch prints the record whenever it has changed. An interrupt ends it.
func (k *keys) watch(cmd *cobra.Command, s *storage, args []string, every time.Duration) error {
	id, err := k.find(args)
	if err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last stet.Record
	for first := true; ; first = false {
		rec, err := s.Read(cmd.Context(), id)
		switch {
		case cmd.Context().Err() != nil:
			return nil
		case err != nil:
			return err
		case first || rec.State != last.State || rec.Fence != last.Fence || rec.Gone != last.Gone:
			if err := k.line(cmd.OutOrStdout(), rec); err != nil {
				return err
			}
		}
		if last = rec; rec.State.Settled() {
			return nil
		}
		select {
		case <-tick.C:
		case <-cmd.Context().Done():
			return nil
		}
	}
}

// line prints a record on one line.
func (k *keys) line(out io.Writer, rec stet.Record) error {
	v := newView(rec)
	if k.format.json() {
		return json.NewEncoder(out).Encode(v)
	}
	_, err := fmt.Fprintf(out, "%s  %-9s  attempt %d, fence %d  %s\n", time.Now().Format(time.TimeOnly), v.State, v.Attempt, v.Fence, v.note())
	return err
}

// view is a record as it is shown: without its owner, and without its result
// unless that was asked for.
type view struct {
	ID          string     `json:"id"`
	Scope       string     `json:"scope_digest"`
	State       string     `json:"state"`
	Attempt     int        `json:"attempt"`
	Fence       int64      `json:"fence"`
	Fingerprint string     `json:"fingerprint"`
	LeaseLeft   string     `json:"lease_left,omitempty"`
	Gone        bool       `json:"gone"`
	ClaimedAt   *time.Time `json:"claimed_at,omitempty"`
	SettledAt   *time.Time `json:"settled_at,omitempty"`
	ExpiresAt   *time.Time `json:"expires_at,omitempty"`
	ForgetAt    *time.Time `json:"forget_at,omitempty"`
	Result      []byte     `json:"result,omitempty"` // base64

	lapsed bool
}

func newView(rec stet.Record) view {
	v := view{ID: rec.ID.String(), Scope: rec.Scope.String(), State: rec.State.String(), Attempt: rec.Attempt, Fence: rec.Fence,
		Fingerprint: hex.EncodeToString(rec.Fingerprint[:]), Gone: rec.Gone}
	if rec.State == stet.Running {
		v.LeaseLeft, v.lapsed = rec.LeaseLeft.Round(time.Millisecond).String(), rec.LeaseLeft <= 0
	}
	for _, t := range []struct {
		from time.Time
		to   **time.Time
	}{{rec.ClaimedAt, &v.ClaimedAt}, {rec.SettledAt, &v.SettledAt}, {rec.ExpiresAt, &v.ExpiresAt}, {rec.ForgetAt, &v.ForgetAt}} {
		if !t.from.IsZero() {
			utc := t.from.UTC()
			*t.to = &utc
		}
	}
	return v
}

// open returns the result as the service gave it to the engine.
func (v view) open(rec stet.Record) ([]byte, error) {
	if len(rec.Result) == 0 {
		return nil, nil
	}
	result, err := seal.Open(rec.Result)
	if err != nil {
		return nil, fmt.Errorf("the stored result: %w", err)
	}
	return result, nil
}

// note says what an operator should know beside the state.
func (v view) note() string {
	switch {
	case v.lapsed:
		return "dead: its lease has run out"
	case v.State == stet.Running.String():
		return "lease for " + v.LeaseLeft
	case v.State == stet.Unknown.String():
		return "nothing runs until it is resolved"
	case v.Gone:
		return "its result is no longer kept"
	default:
		return ""
	}
}

func (v view) rows() [][2]string {
	rows := [][2]string{{"ID", v.ID}, {"STATE", strings.TrimSuffix(v.State+", "+v.note(), ", ")}, {"ATTEMPT", fmt.Sprint(v.Attempt)},
		{"FENCE", fmt.Sprint(v.Fence)}, {"SCOPE", v.Scope}, {"FINGERPRINT", v.Fingerprint}}
	for _, t := range []struct {
		name string
		at   *time.Time
	}{{"CLAIMED", v.ClaimedAt}, {"SETTLED", v.SettledAt}, {"EXPIRES", v.ExpiresAt}, {"FORGOTTEN", v.ForgetAt}} {
		if t.at != nil {
			rows = append(rows, [2]string{t.name, t.at.Format(time.RFC3339)})
		}
	}
	if v.Result != nil {
		rows = append(rows, [2]string{"RESULT", fmt.Sprintf("%q", v.Result)})
	}
	return rows
}

// printViews prints a table.
func printViews(out io.Writer, views []view) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STATE\tATTEMPT\tCLAIMED\tID\tNOTE")
	for _, v := range views {
		claimed := "-"
		if v.ClaimedAt != nil {
			claimed = v.ClaimedAt.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", v.State, v.Attempt, claimed, v.ID, cmp.Or(v.note(), "-"))
	}
	return w.Flush()
}
