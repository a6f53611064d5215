package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// adminVariable is the environment variable with the bearer token of an admin API. A flag would
// be visible in the list of processes.
const adminVariable = "STET_ADMIN_TOKEN"

var operatorHTTP = admin.HTTP{Outcome: stethttp.Outcome, Response: stethttp.StoredResponse}

// keys has the flags of all commands below keys.
type keys struct {
	storeFlags
	admin string // URL of an admin API, instead of a store
	scope string
	id    string // instead of scope and key
}

func newKeys() *cobra.Command {
	k := &keys{}
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "List and show operations, and resolve unknown outcomes",
		Long: `Give the key and --scope of an operation, or its --id, as ls and the logs show it.
This program sends only the digest. A change needs a --reason, and fails if the record
has changed since it was shown. The audit is in --audit, or in that of the process at --admin.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	k.add(cmd, cmd.PersistentFlags())
	k.shown(cmd.PersistentFlags(), "namespace", "the namespace that the service uses")
	k.hidden(cmd.PersistentFlags(), "encryption.")
	k.hidden(cmd.PersistentFlags(), "previous.")
	cmd.PersistentFlags().StringVar(&k.admin, "admin", "", "URL of a running proxy's admin listener, instead of --store; token in $"+adminVariable)
	cmd.SetUsageFunc(usageFunc("Flags:\n", "", 0)) // it must fit a screen
	cmd.AddCommand(k.newList(), k.newGet(), k.newFind(), k.newResolve(), k.newRelease(), k.newExpire(), k.newCancel())
	return cmd
}

// name adds the flags that name one operation.
func (k *keys) name(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.scope, "scope", "", "scope of the key, as in the service")
	cmd.Flags().StringVar(&k.id, "id", "", "digest of the operation, instead of a key and --scope")
}

// at calls do with the admin API or the store that the flags name. The options and the audit are
// for a store.
func (k *keys) at(cmd *cobra.Command, o stet.Options, audit admin.Audit, do func(admin.API) error) error {
	if k.admin != "" {
		if k.given["store.url"] != "" || k.file != "" {
			return usage{errors.New("either --admin or --store (or --config)")}
		}
		remote, err := admin.NewRemote(k.admin, os.Getenv(adminVariable))
		if err != nil {
			return usage{fmt.Errorf("--admin: %w", err)}
		}
		return hint(do(remote))
	}
	c, err := k.storeConfig()
	if err != nil {
		return err
	}
	return withStore(cmd, c.Store, func(s *storage) error {
		o.Namespace, o.SweepEvery, o.StoreTimeout = c.Namespace, -1, time.Duration(c.Store.Timeout)
		engine, err := stet.New(s.Store, o)
		if err != nil {
			return err
		}
		defer engine.Close()
		return do(&admin.Local{Engine: engine, Place: s.place, Audit: audit, HTTP: operatorHTTP})
	})
}

// hint adds the remedy to an error of an admin API.
func hint(err error) error {
	e, ok := errors.AsType[*admin.Error](err)
	switch {
	case !ok:
		return err
	case e.Condition == admin.TokenRequired:
		return fmt.Errorf("%w; put the token that the process was given into %s", err, adminVariable)
	}
	return err
}

// find returns the digests of the operation that the arguments name: under the namespace, and under
// the previous one.
func (k *keys) find(args []string) ([]store.ID, error) {
	switch {
	case k.id != "" && (len(args) > 0 || k.scope != ""):
		return nil, usage{errors.New("either --id, or a key and --scope")}
	case k.id != "":
		id, err := admin.ParseID(k.id)
		if err != nil {
			return nil, usage{fmt.Errorf("--id: %w", err)}
		}
		return []store.ID{id}, nil
	case len(args) == 0 || k.scope == "":
		return nil, usage{errors.New("which operation? Give its key and --scope, or --id")}
	}
	return k.digests(func(namespace string) store.ID { return store.Digest(namespace, k.scope, args[0]) })
}

// scopes returns the digests of a scope, like find. Without a scope it returns the zero ID.
func (k *keys) scopes(scope string) ([]store.ID, error) {
	if scope == "" {
		return make([]store.ID, 1), nil
	}
	return k.digests(func(namespace string) store.ID { return store.DigestScope(namespace, scope) })
}

func (k *keys) digests(of func(namespace string) store.ID) (ids []store.ID, err error) {
	c, err := k.config()
	if err != nil {
		return nil, err
	}
	for _, namespace := range c.Namespaces() {
		ids = append(ids, of(namespace))
	}
	return ids, nil
}

// record reads the record of an operation, which must exist. If it has two, one was released.
func (k *keys) record(cmd *cobra.Command, d admin.API, ids []store.ID, result bool) (rec admin.Record, err error) {
	for _, id := range ids {
		found, err := d.Get(cmd.Context(), id, result)
		if err != nil {
			return found, err
		}
		if found.State != store.None.String() && (rec.ID == "" || rec.State == store.Retryable.String()) {
			rec = found
		}
	}
	if rec.ID == "" {
		err = errors.New("the store has no such operation; are --scope and --namespace those of the service?")
	}
	return rec, err
}

func (k *keys) newList() *cobra.Command {
	var f filter
	var scope, sort string
	limit, offset := 0, 0
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List operations",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > maxList {
				return usage{fmt.Errorf("--limit is %d; give it 1 to %d", limit, maxList)}
			}
			scopes, err := k.scopes(scope)
			if err != nil {
				return err
			}
			q, err := f.query()
			q.Sort, q.Offset = sort, offset
			if err = cmp.Or(err, q.Check()); err != nil {
				return usage{err}
			}
			return k.at(cmd, stet.Options{}, nil, func(d admin.API) error { return k.list(cmd, d, q, scopes, limit) })
		},
	}
	f.flags(cmd, "only operations")
	flags := cmd.Flags()
	flags.StringVar(&f.names.Class, "class", "", "only operations of this class or route")
	flags.StringVar(&scope, "scope", "", "only operations of this scope")
	flags.DurationVar(&f.newer, "newer", 0, "only operations claimed within this time, like 1h")
	flags.StringVar(&sort, "sort", "claimed", `one of `+strings.Join(admin.Sorts(), ", ")+`; "-claimed" is descending`)
	flags.IntVar(&offset, "offset", 0, "leave out this many at the beginning")
	flags.IntVar(&limit, "limit", admin.DefaultLimit, fmt.Sprintf("at most this many, 1 to %d", maxList))
	return cmd
}

const maxList = 100_000

// readList reads up to most records, and reports whether there are more.
func readList(ctx context.Context, d admin.API, q admin.Query, most int) (records []admin.Record, more bool, err error) {
	records = []admin.Record{}
	for more = true; more && len(records) < most; {
		q.Limit = min(most-len(records), admin.MaxLimit)
		page, err := d.List(ctx, q)
		if err != nil {
			return nil, false, err
		}
		records = append(records, page.Records...)
		if q.Offset += len(page.Records); len(page.Records) == 0 || q.Offset >= page.Total {
			q.After, q.Offset, more = page.Next, 0, page.Next != ""
		}
	}
	return records, more, nil
}

// readScopes is readList for all of the scopes.
func readScopes(ctx context.Context, d admin.API, q admin.Query, scopes []store.ID, most int) (records []admin.Record, more bool, err error) {
	for _, q.Scope = range scopes {
		in, moreIn, err := readList(ctx, d, q, most-len(records))
		if err != nil {
			return nil, false, err
		}
		records, more = append(records, in...), more || moreIn
	}
	return records, more, nil
}

// list prints up to limit records of the scopes.
func (k *keys) list(cmd *cobra.Command, d admin.API, q admin.Query, scopes []store.ID, limit int) error {
	records, more, err := readScopes(cmd.Context(), d, q, scopes, limit)
	if err != nil {
		return err
	}
	if more && !k.format.json() {
		defer cmd.PrintErrf("there may be more; --limit is %d\n", limit)
	}
	return k.print(cmd, records, more)
}

// print prints a list.
func (k *keys) print(cmd *cobra.Command, records []admin.Record, more bool) error {
	if !k.format.json() {
		return printRecords(cmd.OutOrStdout(), records)
	}
	return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
		Records []admin.Record `json:"records"`
		More    bool           `json:"more"`
	}{records, more})
}

func (k *keys) newGet() *cobra.Command {
	var body bool
	cmd := &cobra.Command{
		Use:   "get [KEY]",
		Short: "Show one operation",
		Long: `--scope is the scope of the service. For stet proxy it is single-tenant, or the value
of the header or claim; "uri:spiffe://…", "dns:…" or the subject of a certificate;
and "authorization:" with the first 32 hexadecimal digits of the SHA-256 of the
Authorization header. Several together are "LENGTH:VALUE," each, without spaces.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := k.find(args)
			if err != nil {
				return err
			}
			o := stet.Options{}
			if body && k.admin == "" {
				if o.Encryption, _, err = k.encryption(); err != nil {
					return usage{err}
				}
				o.Encryption.AcceptPlain = true // to show
			}
			return k.at(cmd, o, nil, func(d admin.API) error {
				rec, err := k.record(cmd, d, ids, body)
				if err != nil {
					return err
				}
				return k.show(cmd.OutOrStdout(), rec)
			})
		},
	}
	k.name(cmd)
	cmd.Flags().BoolVar(&body, "body", false, "show the stored result; an encrypted one needs --config or --encryption-keys")
	return cmd
}

// show prints one record.
func (k *keys) show(out io.Writer, rec admin.Record) error {
	if k.format.json() {
		return json.NewEncoder(out).Encode(rec)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows(rec) {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := showHistory(out, rec.History); err != nil {
		return err
	}
	return showResult(out, rec)
}

func rows(r admin.Record) [][2]string {
	rows := [][2]string{{"ID", r.ID}, {"STATE", strings.TrimSuffix(r.State+", "+r.Note(), ", ")}, {"ATTEMPT", fmt.Sprint(r.Attempt)},
		{"FENCE", fmt.Sprint(r.Fence)}, {"SCOPE", r.Scope}, {"FINGERPRINT", r.Fingerprint}}
	for _, l := range [][2]string{{"CLASS", r.Class}, {"NAME", r.Name}, {"REF", r.Ref}, {"SCOPE LABEL", r.ScopeLabel}, {"KEPT SCOPE", r.KeptScope}, {"KEPT KEY", r.KeptKey}} {
		if l[1] != "" {
			rows = append(rows, l)
		}
	}
	for _, t := range []struct {
		name string
		at   *time.Time
	}{{"CLAIMED", r.ClaimedAt}, {"SETTLED", r.SettledAt}, {"EXPIRES", r.ExpiresAt}, {"FORGOTTEN", r.ForgetAt}} {
		if t.at != nil {
			rows = append(rows, [2]string{t.name, t.at.Format(time.RFC3339)})
		}
	}
	return rows
}

// printRecords prints a table.
func printRecords(out io.Writer, records []admin.Record) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STATE\tATTEMPT\tCLAIMED\tID\tCLASS\tNAME\tREF\tSCOPE\tNOTE")
	for _, r := range records {
		claimed := "-"
		if r.ClaimedAt != nil {
			claimed = r.ClaimedAt.Format(time.RFC3339)
		}
		ref := cmp.Or(r.Ref, r.KeptKey, "-")
		if strings.HasPrefix(ref, "sealed:") {
			ref = "(encrypted)" // 'get' has it whole
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.State, r.Attempt, claimed, r.ID, cmp.Or(r.Class, "-"), cmp.Or(r.Name, "-"),
			ref, cmp.Or(r.ScopeLabel, r.KeptScope, "-"), cmp.Or(r.Note(), "-"))
	}
	return w.Flush()
}
