package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/store"
)

// selection selects the operations of a change by their properties, instead of one key.
type selection struct {
	states    []string // none: there is no selection
	name, ref string
	older     time.Duration
	max       int
}

const defaultMax = 100 // operations that one command changes

func (s *selection) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&s.states, "state", nil, "instead of a key: change all operations of these states")
	f.StringVar(&s.name, "name", "", "with --state: only operations with this name")
	f.StringVar(&s.ref, "ref", "", "with --state: only operations with this reference")
	f.DurationVar(&s.older, "older", 0, "with --state: only operations claimed longer ago than this, like 10m")
	f.IntVar(&s.max, "max", defaultMax, fmt.Sprintf("with --state: change nothing if there are more, 1 to %d", maxList))
	for _, name := range []string{"state", "name", "ref", "older", "max"} {
		_ = f.MarkHidden(name) // selectionHelp names them; the help must fit a screen
	}
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(admin.States(), cobra.ShellCompDirectiveNoFileComp))
}

// selectionHelp describes the flags of a selection.
const selectionHelp = `
--state unknown, instead of a key, lists all such operations and then changes them:
those of --class, --scope, --name, --ref and --older 10m, at most --max 100.`

// check returns the error of flags that do not fit a selection, or need one.
func (s *selection) check(cmd *cobra.Command, args []string) error {
	if len(s.states) == 0 {
		for _, name := range []string{"name", "ref", "older", "max"} {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s needs --state", name)
			}
		}
		return nil
	}
	if len(args) > 0 || cmd.Flags().Changed("id") {
		return errors.New("either one operation (its key and --scope, or --id), or all of a --state")
	}
	if s.max < 1 || s.max > maxList {
		return fmt.Errorf("--max is %d; give it 1 to %d", s.max, maxList)
	}
	_, err := s.query()
	return err
}

// query reads the states.
func (s *selection) query() (q store.Query, err error) {
	for _, name := range s.states {
		state, err := admin.ParseState(name)
		if err != nil {
			return q, fmt.Errorf("--state: %w", err)
		}
		q.States = append(q.States, state)
	}
	q.OlderThan = s.older
	if err := q.Check(); err != nil {
		return q, fmt.Errorf("--older: %w", err)
	}
	return q, nil
}

// selected returns the operations of the selection that the action is possible for, oldest first.
func (c *change) selected(ctx context.Context, d admin.API, action string) (records []admin.Record, err error) {
	scopes, err := c.scopes(c.scope)
	if err != nil {
		return nil, err
	}
	q, err := c.from.query()
	if err != nil {
		return nil, err
	}
	q.Limit = store.MaxBrowse
	for _, q.Scope = range scopes {
		for more := true; more; more = q.After != "" {
			page, err := d.List(ctx, q)
			if err != nil {
				return nil, err
			}
			for _, r := range page.Records {
				if admin.Possible(action, r) == "" && matches(c.class, r.Class) && matches(c.from.name, r.Name) && matches(c.from.ref, r.Ref) {
					records = append(records, r)
				}
			}
			if len(records) > c.from.max {
				return nil, fmt.Errorf("there are more than %d such operations; nothing was changed. Select fewer, or give a greater --max", c.from.max)
			}
			q.After = page.Next
		}
	}
	slices.SortStableFunc(records, func(a, b admin.Record) int { return claimed(a).Compare(claimed(b)) })
	return records, nil
}

func matches(want, got string) bool { return want == "" || want == got }

func claimed(r admin.Record) time.Time {
	if r.ClaimedAt == nil {
		return time.Time{}
	}
	return *r.ClaimedAt
}

// makeMany lists the selected operations, asks for confirmation, and changes each that has not changed since. It prints a
// line for each.
func (c *change) makeMany(cmd *cobra.Command, d admin.API, wanted admin.Change) error {
	stop := progress(cmd.ErrOrStderr(), func() string { return "selecting operations" })
	records, err := c.selected(cmd.Context(), d, wanted.Action)
	stop()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if !c.format.json() {
		if err := printRecords(out, records); err != nil {
			return err
		}
	}
	if !c.dryRun && !c.yes && len(records) > 0 {
		want := strconv.Itoa(len(records))
		cmd.PrintErrf("\n%s makes these operations %s; every retry will return that.\nType their number, %s, to continue: ", wanted.Action, wanted.To(), want)
		if err := typed(cmd, want); err != nil {
			return err
		}
	}
	failed := 0
	for _, rec := range records {
		if err := c.makeOne(cmd, d, rec, wanted); err != nil {
			if cmd.Context().Err() != nil {
				return err
			}
			failed++
			if c.format.json() {
				err = json.NewEncoder(out).Encode(map[string]string{"id": rec.ID, "error": err.Error()})
			} else {
				_, err = fmt.Fprintf(out, "not changed: %s: %v\n", admin.Short(rec.ID), err)
			}
			if err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d operations were not changed", failed, len(records))
	}
	return nil
}
