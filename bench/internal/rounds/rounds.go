// Package rounds compares things side by side: it measures each of them in
// turn, round after round, so that a machine whose speed drifts is unjust to
// all of them alike, and quotes medians.
package rounds

import (
	"fmt"
	"os"
	"slices"
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
