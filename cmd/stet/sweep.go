package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

const (
	sweepStep    = 1000             // records that one step looks at
	maxSweepRest = 10 * time.Second // between two steps
)

func newSweep() *cobra.Command {
	var flags storeFlags
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Clean up once: expired results, forgotten records, expired runs",
		Long: `sweep removes expired results and old records, and marks expired runs unknown or
releases them, until nothing is left to do. Engines and stet proxy sweep by
themselves. The command is for services that use SQL alone, and for cron: any
number can run at once, beside any number of engines.

After each step it waits as long as the step took, so that other users have at
least half of the store.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit <= 0 {
				return usage{errors.New("--for must be positive")}
			}
			return flags.with(cmd, func(s *storage) error {
				sweeper, ok := store.As[store.Sweeper](s.Store)
				if !ok {
					return fmt.Errorf("%s needs no sweep: its records expire without one", s.place)
				}
				sum, err := sweepAll(cmd, sweeper, limit)
				return errors.Join(printSwept(cmd, flags.format, sum), err)
			})
		},
	}
	flags.add(cmd, cmd.Flags())
	cmd.Flags().DurationVar(&limit, "for", 10*time.Minute, "time limit; the rest is for the next sweep")
	return cmd
}

// sweepAll sweeps until nothing is left to do or the time limit is reached.
func sweepAll(cmd *cobra.Command, s store.Sweeper, limit time.Duration) (sum store.Swept, err error) {
	began := time.Now()
	var changed atomic.Int64
	defer progress(cmd.ErrOrStderr(), func() string { return fmt.Sprintf("%d records changed", changed.Load()) })()
	for {
		step := time.Now()
		got, failed := s.Sweep(cmd.Context(), sweepStep)
		sum.MarkedUnknown += got.MarkedUnknown
		sum.Expired += got.Expired
		sum.Purged += got.Purged
		sum.More = got.More
		changed.Store(int64(sum.MarkedUnknown + sum.Expired + sum.Purged))
		if failed != nil {
			err = failed
		}
		if _, partial := errors.AsType[*store.PartialError](failed); failed != nil && !partial {
			return sum, err
		}
		if !got.More || time.Since(began) > limit || !timer.Sleep(cmd.Context(), min(time.Since(step), maxSweepRest)) {
			return sum, err
		}
	}
}

func printSwept(cmd *cobra.Command, out format, s store.Swept) error {
	if out.json() {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
			Expired int  `json:"expired"`
			Removed int  `json:"removed"`
			Unknown int  `json:"unknown"`
			More    bool `json:"more"`
		}{s.Expired, s.Purged, s.MarkedUnknown, s.More})
	}
	more := ""
	if s.More {
		more = "; more is left for the next time"
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d results expired, %d records removed, %d expired runs marked unknown%s\n", s.Expired, s.Purged, s.MarkedUnknown, more)
	return err
}
