package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/admin"
)

// filter has the flags that select operations.
type filter struct {
	states       []string
	names        admin.Names
	older, newer time.Duration
}

// flags adds the flags that ls and the changes share. what begins their descriptions.
func (s *filter) flags(cmd *cobra.Command, what string) {
	f := cmd.Flags()
	f.StringSliceVar(&s.states, "state", nil, what+" of these states: "+strings.Join(admin.StateNames(), ", "))
	f.StringVar(&s.names.Name, "name", "", what+" with this name")
	f.StringVar(&s.names.Ref, "ref", "", what+" with this reference")
	f.StringVar(&s.names.ScopeLabel, "scope-label", "", what+" of scopes with this label")
	f.DurationVar(&s.older, "older", 0, what+" claimed longer ago than this, like 10m")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(admin.StateNames(), cobra.ShellCompDirectiveNoFileComp))
}

// query returns the query of the flags.
func (s *filter) query() (q admin.Query, err error) {
	q.Names, q.OlderThan, q.NewerThan = s.names, s.older, s.newer
	for _, name := range s.states {
		if err := q.AddState(name); err != nil {
			return q, fmt.Errorf("--state: %w", err)
		}
	}
	if err := q.Check(); err != nil {
		return q, fmt.Errorf("--older and --newer: %w", err)
	}
	return q, nil
}

// selection selects the operations of a change by their properties, instead of one key. Without
// states there is none.
type selection struct {
	filter
	max int
}

const defaultMax = 100 // operations that one command changes

// selectionFlags are the flags that need --state.
var selectionFlags = []string{"name", "ref", "scope-label", "older", "max"}

func (s *selection) flags(cmd *cobra.Command) {
	s.filter.flags(cmd, "instead of a key: change all operations")
	cmd.Flags().IntVar(&s.max, "max", defaultMax, fmt.Sprintf("with --state: change nothing if there are more, 1 to %d", maxList))
	for _, name := range append([]string{"state"}, selectionFlags...) {
		_ = cmd.Flags().MarkHidden(name) // selectionHelp names them; the help must fit a screen
	}
}

// selectionHelp describes the flags of a selection.
const selectionHelp = `
--state unknown, instead of a key, lists all such operations and then changes them: those of
--class, --scope, --scope-label, --name, --ref and --older 10m, at most --max 100.`

// check returns the error of flags that do not fit a selection, or need one.
func (s *selection) check(cmd *cobra.Command, args []string) error {
	if len(s.states) == 0 {
		for _, name := range selectionFlags {
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
	q.Names.Class = c.class
	all, more, err := readScopes(ctx, d, q, scopes, admin.MaxScan)
	if err != nil {
		return nil, err
	}
	records = slices.DeleteFunc(all, func(r admin.Record) bool { return admin.Possible(action, r) != "" })
	if more || len(records) > c.from.max {
		return nil, fmt.Errorf("there are more than %d such operations; nothing was changed. Select fewer, or give a greater --max", min(c.from.max, admin.MaxScan))
	}
	return records, nil
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
