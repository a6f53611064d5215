package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// finding is what a check has found.
type finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // the remedy, if it is not OK
}

func newDoctor() *cobra.Command {
	f := &storeFlags{}
	var readOnly bool
	var mark string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether a store can keep the promises",
		Long: `doctor connects to a store and checks its tables, its clock, its durability
settings, and whether expired records are removed. Then it claims, settles and
replays an operation of its own, unless --read-only.

With --watermark it also notices a store that was restored from an older backup:
the file has the newest state that was seen. Keep it outside of the store's
backups, and let one cron job run doctor.

The exit status is 1 if anything is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if readOnly && mark != "" {
				return usage{errors.New("--watermark writes a record; leave out --read-only")}
			}
			var restores []finding
			found, err := visit(cmd, f, !readOnly, func(s *storage) {
				if mark != "" {
					restores = []finding{compareWatermark(cmd.Context(), s.Store, mark)}
				}
			})
			found = append(found, restores...)
			if err != nil {
				return err
			}
			return report(cmd.OutOrStdout(), found, f.format.json())
		},
	}
	f.add(cmd, cmd.Flags())
	cmd.Flags().StringVar(&mark, "watermark", "", "file with the newest state that was seen")
	_ = cmd.MarkFlagFilename("watermark")
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "do not run the operation on a scratch key")
	return cmd
}

// visit opens the store and examines it, and then calls more, which may be nil. An error is about
// the command line.
func visit(cmd *cobra.Command, f *storeFlags, scratch bool, more func(*storage)) (found []finding, err error) {
	err = f.with(cmd, func(s *storage) error {
		found = append([]finding{ok("connects", "%s", s.place)}, examine(cmd.Context(), s, scratch)...)
		if more != nil {
			more(s)
		}
		return nil
	})
	if _, wrong := errors.AsType[usage](err); wrong {
		return nil, err
	}
	switch {
	case errors.Is(err, store.ErrNewerTables):
		found = append(found, bad("version", describe(store.Record{}, err), "the server is up and was reached. Run the version of stet that migrated the tables, or a later one"))
	case err != nil:
		found = append(found, bad("connects", describe(store.Record{}, err), "is the server up, are address and password right, and does it have the settings that the store needs?"))
	}
	return found, nil
}

func ok(check, format string, args ...any) finding {
	return finding{check, true, fmt.Sprintf(format, args...), ""}
}

func bad(check, found, do string) finding { return finding{check, false, found, do} }

// report prints the findings, and returns an error if one is bad.
func report(out io.Writer, found []finding, asJSON bool) error {
	wrong := 0
	for _, f := range found {
		if !f.OK {
			wrong++
		}
	}
	if asJSON {
		err := json.NewEncoder(out).Encode(struct {
			OK     bool      `json:"ok"`
			Checks []finding `json:"checks"`
		}{wrong == 0, found})
		if err != nil {
			return err
		}
	} else {
		for _, f := range found {
			mark := "✓"
			if !f.OK {
				mark = "✗"
			}
			fmt.Fprintf(out, "%s %-12s %s\n", mark, f.Check, wrapped(f.Found, 15))
			if f.Do != "" {
				fmt.Fprintf(out, "  %-12s → %s\n", "", wrapped(f.Do, 17))
			}
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d checks failed", wrong, len(found))
	}
	return nil
}

// screen is the width of a line, in characters.
const screen = 80

// wrapped breaks a text at spaces into lines that fit the screen. All lines begin at the column
// indent; the caller writes that of the first.
func wrapped(text string, indent int) string {
	var b strings.Builder
	column := indent
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > screen:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// examine checks an open store.
func examine(ctx context.Context, s *storage, scratch bool) []finding {
	found := durability(ctx, s)
	found = append(found, cleanup(ctx, s))
	found = append(found, backlog(ctx, s)...)
	if scratch {
		found = append(found, selfTest(ctx, s.Store)...)
	}
	return found
}

// Limits of the checks.
const (
	maxDistance = 5 * time.Second // of clocks; a lease is 30 s by default
	maxLag      = 5 * time.Minute // of the clean-up, which is every minute
	maxPages    = 50              // of records that are looked through for it

	releaseTimeout = 5 * time.Second // of the scratch claim
)

// cleanup finds out whether expired runs are marked unknown.
func cleanup(ctx context.Context, s *storage) finding {
	const name = "clean-up"
	browser, can := store.As[store.Browser](s.Store)
	if !can {
		return ok(name, "not known: the store cannot be browsed")
	}
	late, worst, looked := 0, time.Duration(0), 0
	q := store.Query{States: []store.State{store.Running}, Limit: store.MaxBrowse, OlderThan: maxLag}
	for range maxPages {
		page, err := browser.Browse(ctx, q)
		if err != nil {
			return bad(name, err.Error(), "may the store be read?")
		}
		for _, rec := range page.Records {
			looked++
			if lag := -rec.LeaseLeft; lag > maxLag {
				late, worst = late+1, max(worst, lag)
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if late > 0 {
		return bad(name, fmt.Sprintf("%d expired runs wait to be marked unknown, the oldest for %v", late, worst.Round(time.Second)),
			"is a process with an engine running, and its Options.SweepEvery not negative?")
	}
	return ok(name, "no expired run waits for it; %d long ones are alive", looked)
}

// selfTest runs an operation of its own on a scratch key, which is forgotten soon.
func selfTest(ctx context.Context, st store.Store) []finding {
	id := store.Digest("stet doctor", "scratch", stet.NewKey())
	req := store.ClaimRequest{ID: id, Scope: store.DigestScope("stet doctor", "scratch"), Fingerprint: stet.NewFingerprint([]byte("a")),
		Owner: store.NewOwner(), Lease: time.Minute}
	other := req
	other.Owner = store.NewOwner()
	differs := other
	differs.Fingerprint = stet.NewFingerprint([]byte("b"))
	keep := store.Retention{Result: time.Second, Tombstone: time.Second}
	out := store.Settlement{State: store.Completed, Result: store.Result{Body: []byte("scratch")}}

	before := time.Now()
	defer leaveNothing(ctx, st, req, keep)
	rec, err := st.Claim(ctx, req)
	if err != nil || rec.State != store.Running || rec.Owner != req.Owner {
		return []finding{bad("claim", describe(rec, err), "may this role write? Is the disk full?")}
	}
	took := time.Since(before)
	found := []finding{ok("claim", "granted in %v", took.Round(10*time.Microsecond)), clock(rec.ClaimedAt, before, took)}
	// check reports whether to continue: an error that is no answer says nothing of
	// the store's promises, and neither would the checks after it.
	check := func(name, what string, rec store.Record, err error, holds bool) bool {
		switch answer := err == nil || stet.KindOf(err) == stet.KindMismatch || stet.KindOf(err) == stet.KindFenced; {
		case holds:
			found = append(found, ok(name, "%s", what))
		case answer:
			found = append(found, bad(name, describe(rec, err), "this is a defect of the store: do not use it, and report it"))
		default:
			found = append(found, bad(name, describe(rec, err), "the store could not be used: try again, and look at its own log"))
			return false
		}
		return true
	}
	rec2, err := st.Claim(ctx, other)
	if !check("conflict", "a second claim is refused", rec2, err, err == nil && rec2.State == store.Running && rec2.Owner == req.Owner) {
		return found
	}
	rec2, err = st.Claim(ctx, differs)
	if !check("mismatch", "another request is refused", rec2, err, stet.KindOf(err) == stet.KindMismatch) {
		return found
	}
	stale := rec.Claim()
	stale.Fence--
	err = st.Settle(ctx, stale, out, keep)
	if !check("fence", "a stale fence writes nothing", rec, err, stet.KindOf(err) == stet.KindFenced) {
		return found
	}
	err = st.Settle(ctx, rec.Claim(), out, keep)
	if !check("settle", "the outcome is written", rec, err, err == nil) {
		return found
	}
	rec2, err = st.Claim(ctx, other)
	if !check("replay", "a retry gets it", rec2, err, err == nil && rec2.State == store.Completed && string(rec2.Result.Body) == "scratch") {
		return found
	}
	err = st.Settle(ctx, rec.Claim(), store.Settlement{State: store.Failed}, keep)
	check("final", "no other outcome replaces it", rec, err, stet.KindOf(err) == stet.KindFenced)
	return found
}

// leaveNothing releases the scratch claim where an interrupt or an error left it,
// also if only the reply was lost: it would be unknown permanently.
func leaveNothing(ctx context.Context, st store.Store, req store.ClaimRequest, keep store.Retention) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if rec, err := st.Read(ctx, req.ID); err == nil && rec.State == store.Running && rec.Owner == req.Owner {
		_ = st.Release(ctx, rec.Claim(), keep) // its failure does not change the finding
	}
}

// clock compares the store's clock with this host's. It decides nothing, for only
// the store's clock is used; but what people see in logs does not fit otherwise.
func clock(theirs, before time.Time, took time.Duration) finding {
	distance := theirs.Sub(before.Add(took / 2)).Round(time.Millisecond)
	if distance.Abs() > maxDistance+took {
		return bad("clock", fmt.Sprintf("the store's is %v from this host's", distance), "synchronise both (NTP); leases go by the store's alone")
	}
	return ok("clock", "%v from this host's", distance)
}

func describe(rec store.Record, err error) string {
	if err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return fmt.Sprintf("succeeded, and left it %v", rec.State)
}
