package main

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet/store"
)

// bundle is a report to people who must not learn secrets. It has only values that are known to be
// harmless: no texts of errors, of which some have a URL, and no keys, names, references or hosts.
type bundle struct {
	At       time.Time               `json:"at"`
	Version  string                  `json:"version"`
	System   string                  `json:"system"`
	CPUs     int                     `json:"cpus"`
	Config   map[string]string       `json:"config"`
	Readable bool                    `json:"configuration_readable"`
	Store    string                  `json:"store"` // its kind
	Checks   []harmlessFinding       `json:"checks"`
	Records  map[string]recordsCount `json:"records"`
}

// harmlessFinding is a finding without its text, which can have parts of an error.
type harmlessFinding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Do    string `json:"do,omitempty"` // a constant text
}

type recordsCount struct {
	Count  int    `json:"count"`
	More   bool   `json:"more,omitempty"`
	Oldest string `json:"oldest,omitempty"` // its age
}

func newSupportBundle() *cobra.Command {
	f := &storeFlags{}
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Print a report without secrets, to attach to a bug report",
		Long: `support-bundle prints one JSON object: the version, the fields of the
configuration that are set, the results of 'stet doctor', and the number of
records in each state. Texts of the configuration and of errors, keys, names and
addresses are left out, because they can have secrets. It changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(f.bundle(cmd))
		},
	}
	f.addStore(cmd.Flags())
	return cmd
}

// bundle makes the report. Whatever fails is missing from it.
func (f *storeFlags) bundle(cmd *cobra.Command) bundle {
	b := bundle{At: time.Now().UTC(), Version: builtFrom(debug.ReadBuildInfo()).String(), System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Checks: []harmlessFinding{}, Records: map[string]recordsCount{}}
	c, err := f.config()
	if err != nil {
		return b
	}
	b.Readable, b.Config, b.Store = true, c.Harmless(), c.Store.Kind()
	found, err := visit(cmd, f, false, func(s *storage) { b.Records = countRecords(cmd, s) })
	if err != nil {
		found = append(found, bad("connects", "", "the store cannot be opened; 'stet doctor' prints the error"))
	}
	for _, one := range found {
		b.Checks = append(b.Checks, harmlessFinding{one.Check, one.OK, one.Do})
	}
	return b
}

// maxCounted bounds how many records of a state are counted.
const maxCounted = 10_000

func countRecords(cmd *cobra.Command, s *storage) map[string]recordsCount {
	all := map[string]recordsCount{}
	browser, can := store.As[store.Browser](s.Store)
	if !can {
		return all
	}
	now := time.Now()
	for _, state := range []store.State{store.Accepted, store.Running, store.Retryable, store.Unknown} {
		var n recordsCount
		var oldest time.Duration
		q := store.Query{States: []store.State{state}, Limit: store.MaxBrowse}
		for {
			page, err := browser.Browse(cmd.Context(), q)
			if err != nil {
				return all // no number is better than a wrong one
			}
			for _, rec := range page.Records {
				n.Count++
				oldest = max(oldest, now.Sub(rec.ClaimedAt))
			}
			if q.After = page.Next; q.After == "" {
				break
			}
			if n.More = n.Count >= maxCounted; n.More {
				break
			}
		}
		if n.Count > 0 {
			n.Oldest = oldest.Round(time.Second).String()
		}
		all[state.String()] = n
	}
	return all
}
