package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/store"
)

// change is a change by hand of one operation.
type change struct {
	*keys
	reason, audit, actor string
	class                string // at the admin API
	dryRun, yes          bool
	from                 selection

	keep       store.Retention
	plain      bool
	encryption stet.Encryption // of the response that will be stored
}

const defaultRetention = 24 * time.Hour // store.Retention's

// sealed checks how the service encrypts the response that will be stored. Without encryption,
// or with another key, the service would read it as damaged, permanently.
func (c *change) sealed() (err error) {
	known := false
	c.encryption, known, err = c.keys.encryption()
	switch {
	case err != nil:
		return err
	case c.plain && len(c.encryption.Keys) > 0:
		return errors.New("--plain contradicts the encryption keys; leave one of them out")
	case !c.plain && !known:
		return errors.New("does the service encrypt results? If it does, give --config or --encryption-keys '[{name: NAME, file: FILE}]'; if not, give --plain")
	}
	return nil
}

// encryption returns how the service encrypts results, by the configuration or the flags. It is
// known if one of them was given; a configuration without keys means no encryption.
func (k *keys) encryption() (o stet.Encryption, known bool, err error) {
	c, err := k.read()
	if err == nil && c.Encryption != nil {
		o, err = c.Encrypts()
		return o, true, err
	}
	return o, k.file != "", err
}

// flags adds the flags of all changes.
func (c *change) flags(cmd *cobra.Command) {
	c.name(cmd)
	c.from.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&c.reason, "reason", "", "the reason, for the audit; required")
	f.StringVar(&c.audit, "audit", "", "file of the audit (default: the standard error)")
	f.StringVar(&c.actor, "actor", "", "name for the audit (default: the user of this process, on this host)")
	f.BoolVar(&c.dryRun, "dry-run", false, "print the change without making it")
	f.BoolVar(&c.yes, "yes", false, "do not ask")
	f.StringVar(&c.class, "class", "", "with --admin: the class or route whose policy has the times")
	_ = cmd.MarkFlagFilename("audit")
	f.BoolP("help", "h", false, "")
	for _, name := range []string{"help", "actor"} {
		_ = f.MarkHidden(name) // the help must fit a screen
	}
}

func (k *keys) newResolve() *cobra.Command {
	c := &change{keys: k}
	var as, body string
	var status int
	var header []string
	cmd := &cobra.Command{
		Use:   "resolve [KEY] --as OUTCOME --reason WHY",
		Short: "Record the outcome of an expired run: completed, failed or not-executed",
		Long:  `Check first whether it happened. Retries get the response of --status, or else a 410.` + selectionHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if as != "completed" && as != "failed" && as != "not-executed" {
				return usage{fmt.Errorf("--as is %q; give it completed, failed or not-executed", as)}
			}
			response, err := parseResponse(status, header, body)
			if err == nil && as == "not-executed" && response != nil {
				err = errors.New("an operation that was not executed has no response; leave --status, --header and --body-file out")
			}
			if err != nil {
				return usage{err}
			}
			return c.make(cmd, args, admin.Change{Action: admin.Resolve, As: as, Response: response})
		},
	}
	c.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&as, "as", "", "completed, failed or not-executed")
	f.IntVar(&status, "status", 0, "status of the response that retries get")
	f.StringVar(&body, "body-file", "", "file with the content of the response")
	f.StringArrayVar(&header, "header", nil, `header field of the response, like "Content-Type: application/json"`)
	f.BoolVar(&c.plain, "plain", false, "the service does not encrypt (default: as --config or --encryption-keys says)")
	_ = f.MarkHidden("plain") // an error names it where it is needed
	c.retention(cmd, "how long the response is kept, as in the service's policy")
	f.DurationVar(&c.keep.Tombstone, "tombstone", 30*24*time.Hour, "how long the key does not run again")
	_ = cmd.RegisterFlagCompletionFunc("as", cobra.FixedCompletions([]string{"completed", "failed", "not-executed"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// retention adds the flags for the retention of the changed record.
func (c *change) retention(cmd *cobra.Command, what string) {
	cmd.Flags().DurationVar(&c.keep.Result, "retention", defaultRetention, what)
}

// parseResponse returns the response that the flags of resolve give, if any.
func parseResponse(status int, fields []string, file string) (*admin.Response, error) {
	if status == 0 {
		if len(fields) > 0 || file != "" {
			return nil, errors.New("a response needs a --status")
		}
		return nil, nil
	}
	r := &admin.Response{Status: status, Header: http.Header{}}
	for _, f := range fields {
		name, value, ok := strings.Cut(f, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf(`--header %q is no field; write it like "Content-Type: text/plain"`, f)
		}
		r.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	if file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--body-file: %w", err)
		}
		r.Body = content
	}
	return r, nil
}

func (k *keys) newRelease() *cobra.Command {
	c := &change{keys: k}
	cmd := &cobra.Command{
		Use:   "release [KEY] --reason WHY",
		Short: "Allow the operation of an expired run to run again (resolve --as not-executed)",
		Long:  "Allow the operation of an expired run to run again (resolve --as not-executed)." + selectionHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.keep.Tombstone = c.keep.Result // an operation that was not executed leaves no tombstone
			return c.make(cmd, args, admin.Change{Action: admin.Release})
		},
	}
	c.flags(cmd)
	c.retention(cmd, "how long a retry of the key is expected, as in the service's policy")
	return cmd
}

func (k *keys) newExpire() *cobra.Command {
	c := &change{keys: k}
	cmd := &cobra.Command{
		Use:   "expire [KEY] --reason WHY",
		Short: "Remove the stored result, or a damaged record; the operation does not run again",
		Long:  "Remove the stored result, or a damaged record; the operation does not run again." + selectionHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.keep = store.Retention{Result: defaultRetention, Tombstone: defaultRetention} // not used
			return c.make(cmd, args, admin.Change{Action: admin.Expire})
		},
	}
	c.flags(cmd)
	return cmd
}

func (k *keys) newCancel() *cobra.Command {
	c := &change{keys: k}
	cmd := &cobra.Command{
		Use:   "cancel [KEY] --reason WHY",
		Short: "Cancel a job that waits, or ask its run to end",
		Long:  "Cancel a job that waits, or ask its run to end." + selectionHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.keep = store.Retention{Result: defaultRetention, Tombstone: 30 * defaultRetention}
			var err error
			if c.encryption, _, err = k.encryption(); err != nil { // the job may be encrypted
				return usage{err}
			}
			return c.make(cmd, args, admin.Change{Action: admin.Cancel})
		},
	}
	c.flags(cmd)
	return cmd
}

// fitting returns the error of flags that exclude each other.
func (c *change) fitting(cmd *cobra.Command) error {
	for name, store := range map[string]bool{"retention": true, "tombstone": true, "plain": true, "audit": true, "class": false} {
		switch {
		case !cmd.Flags().Changed(name), name == "class" && len(c.from.states) > 0:
		case store && c.admin != "":
			return fmt.Errorf("--%s is for --store; with --admin, the running process does that itself", name)
		case !store && c.admin == "":
			return fmt.Errorf("--%s is for --admin; give --retention and --tombstone", name)
		}
	}
	if c.keep.Result <= 0 || c.keep.Tombstone < c.keep.Result {
		return fmt.Errorf("--retention is %v and --tombstone %v; both must be positive, and the tombstone at least as long as the result", c.keep.Result, c.keep.Tombstone)
	}
	if strings.TrimSpace(c.reason) == "" {
		return errors.New("--reason is required, for the audit")
	}
	return nil
}

// check validates the flags before the store is opened.
func (c *change) check(cmd *cobra.Command, wanted admin.Change) error {
	if err := c.fitting(cmd); err != nil {
		return err
	}
	if err := wanted.Check(); err != nil {
		return err
	}
	if _, err := wanted.Resolution(operatorHTTP.Outcome); err != nil || wanted.Response == nil || c.admin != "" {
		return err
	}
	return c.sealed()
}

// make shows the record, asks for confirmation, and changes the record that was shown.
func (c *change) make(cmd *cobra.Command, args []string, wanted admin.Change) (err error) {
	wanted.Reason, wanted.Actor, wanted.Class, wanted.DryRun = c.reason, cmp.Or(c.actor, whoami()), c.class, c.dryRun
	if err := c.from.check(cmd, args); err != nil {
		return usage{err}
	}
	var ids []store.ID
	if len(c.from.states) == 0 {
		if ids, err = c.find(args); err != nil {
			return err
		}
	}
	if err := c.check(cmd, wanted); err != nil {
		return usage{err}
	}
	book := cmd.ErrOrStderr()
	if c.audit != "" {
		f, failed := openAudit(c.audit)
		if failed != nil {
			return fmt.Errorf("--audit: %w", failed)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		book = f
	}
	o := stet.Options{Policy: stet.Policy{Retention: c.keep}, Encryption: c.encryption}
	audit := func(_ context.Context, e admin.Entry) error { return json.NewEncoder(book).Encode(e) } // in one write: lines of several operators do not mix
	return c.at(cmd, o, audit, func(d admin.API) error {
		if len(c.from.states) > 0 {
			return c.makeMany(cmd, d, wanted)
		}
		rec, err := c.record(cmd, d, ids, false)
		if err != nil {
			return err
		}
		if why := admin.Possible(wanted.Action, rec); why != "" {
			return errors.New(why)
		}
		if !c.dryRun && !c.yes {
			if err := c.confirm(cmd, rec, wanted); err != nil {
				return err
			}
		}
		return c.makeOne(cmd, d, rec, wanted)
	})
}

// makeOne changes the record that was shown.
func (c *change) makeOne(cmd *cobra.Command, d admin.API, rec admin.Record, wanted admin.Change) error {
	id, err := admin.ParseID(rec.ID)
	if err != nil {
		return err
	}
	wanted.Fence = rec.Fence
	if len(c.from.states) > 0 {
		wanted.Class = "" // of a selection, --class is a filter
		if c.admin != "" {
			wanted.Class = rec.Class // its policy has the times
		}
	}
	e, err := d.Change(cmd.Context(), id, wanted)
	if err != nil {
		return err
	}
	return c.report(cmd.OutOrStdout(), e)
}

// report prints the change.
func (c *change) report(out io.Writer, e admin.Entry) error {
	if c.format.json() {
		return json.NewEncoder(out).Encode(e)
	}
	_, err := fmt.Fprintf(out, "%s: %s is %s, was %s\n", e.Result, admin.Short(e.ID), e.To, e.From.State)
	return err
}

// confirm asks the operator to type the ID of the operation.
func (c *change) confirm(cmd *cobra.Command, rec admin.Record, wanted admin.Change) error {
	for _, row := range rows(rec) {
		cmd.PrintErrf("%-12s %s\n", row[0], row[1])
	}
	want := admin.Short(rec.ID)
	cmd.PrintErrf("\n%s makes it %s; every retry will return that.\nType the end of its ID, %s, to continue: ", wanted.Action, wanted.To(), want)
	return typed(cmd, want)
}

// openAudit opens a file to append to: one write a line.
func openAudit(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
}

// whoami returns the user of this process, and the user who called sudo.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if by := os.Getenv("SUDO_USER"); by != "" {
		name = by + " as " + name
	}
	if host, err := os.Hostname(); err == nil {
		name += " on " + host
	}
	return name
}
