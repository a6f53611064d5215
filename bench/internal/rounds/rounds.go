// Package rounds compares things side by side: it measures each of them in
// turn, round after round, so that a machine whose speed drifts is unjust to
// all of them alike, and quotes medians.
package rounds

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Contender is one of the things compared.
type Contender struct {
	Name    string
	Measure func() (float64, error) // a rate: higher is better
}

// Compare measures every contender in each of n rounds, after one round that
// does not count, and returns all rates by name.
func Compare(n int, contenders ...Contender) (map[string][]float64, error) {
	rates := make(map[string][]float64)
	for round := range n + 1 {
		for _, c := range contenders {
			rate, err := c.Measure()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			if round > 0 {
				rates[c.Name] = append(rates[c.Name], rate)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round, n)
	}
	return rates, nil
}

// Load has callers, numbered from 0, call op again and again for a while, each of them one
// call at a time. It returns how many calls a second there were, and how long they took,
// sorted. A caller ends with its first error, and Load returns all of these.
func Load(callers int, each time.Duration, op func(caller int) error) (rate float64, took []time.Duration, err error) {
	var wg sync.WaitGroup
	all := make([][]time.Duration, callers)
	errs := make([]error, callers)
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for last := time.Now(); last.Sub(began) < each && errs[i] == nil; {
				errs[i] = op(i)
				now := time.Now()
				all[i] = append(all[i], now.Sub(last))
				last = now
			}
		})
	}
	wg.Wait()
	took = slices.Concat(all...)
	rate = float64(len(took)) / time.Since(began).Seconds()
	slices.Sort(took)
	return rate, took, errors.Join(errs...)
}

// Median returns the median of v, which must not be empty.
func Median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// Ratio returns the median of a/b, taken round by round.
func Ratio(a, b []float64) float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return Median(r)
}

// Figure prints a figure for people and scripts.
func Figure(name string, value float64, unit string) {
	fmt.Printf("figure: %s = %.4g %s\n", name, value, unit)
}
