// Command cmd searches every state of the protocol, under each policy, and prints
// how many there are. It exits with 1 if a promise can be broken, and prints a
// shortest way to do so.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/test/proof/model"
)

var (
	late       = flag.Uint("late", 1, "how many messages may be overtaken by what their sender does next: 0 to 2")
	operations = flag.Uint("operations", 1, "how often the operator steps in: 0 to 2")
	rule       = flag.String("rule", "", "a rule to break: "+strings.Join(model.Rules, ", "))
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run() error {
	if *late > 2 || *operations > 2 {
		return errors.New("-late and -operations are 0 to 2")
	}
	var errs []error
	states, transitions := 0, 0
	for _, p := range model.Policies {
		for _, other := range []bool{false, true} {
			asks := "all ask for the same"
			if other {
				asks = "one asks for something else"
			}
			began := time.Now()
			r := model.Explore(model.Options{Policy: p, Other: other, Late: uint8(*late), Operations: uint8(*operations), Rule: *rule})
			states += r.States
			transitions += r.Transitions
			fmt.Printf("policy %q, %s: %d states, %d transitions, %d states of rest, in %v\n",
				p, asks, r.States, r.Transitions, r.Resting, time.Since(began).Round(time.Millisecond))
			if r.Violation != "" {
				errs = append(errs, fmt.Errorf("policy %q: %s:\n  %s", p, r.Violation, strings.Join(r.Trace, "\n  ")))
			}
		}
	}
	fmt.Printf("figure: model_states = %d states\n", states)
	fmt.Printf("figure: model_transitions = %d transitions\n", transitions)
	fmt.Printf("figure: model_violations = %d violations\n", len(errs))
	return errors.Join(errs...)
}
