// Command failover measures how often two callers are both granted the same key
// when a Redis master is cut off and Sentinel promotes a replica. Three hosts, each
// with a server, a Sentinel and room for a caller, are network namespaces on this
// machine; the master's is cut off together with one caller. It needs root and
// iproute2, on Linux.
//
//	go run ./failover
//
// It prints figures: of the keys that both callers claimed while the network was
// cut, and of all keys, the share that was granted twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

var (
	cutFor    = flag.Duration("cut", 15*time.Second, "how long the master is cut off")
	calm      = flag.Duration("calm", 5*time.Second, "how long callers run before and after that")
	n         = flag.Int("rounds", 3, "rounds, each with a new set of servers")
	replicas  = flag.String("min-replicas", "0,1", "values of min-replicas-to-write to measure with")
	downAfter = flag.Duration("down-after", 5*time.Second, "Sentinel's down-after-milliseconds; min-replicas-max-lag is 2 s")
	asWorker  = flag.Bool("worker", false, "be a caller; used by the command itself")
)

func main() {
	flag.Parse()
	var err error
	if *asWorker {
		err = work(context.Background(), os.Stdout, flag.Args())
	} else {
		err = run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	for _, least := range split(*replicas) {
		var sum tally
		for round := range *n {
			got, err := measure(ctx, least)
			if err != nil {
				return fmt.Errorf("min-replicas-to-write %s, round %d: %w", least, round+1, err)
			}
			fmt.Fprintf(os.Stderr, "min-replicas-to-write %s, round %d: %+v\n", least, round+1, got)
			sum.add(got)
		}
		name := "redis_failover_min_replicas_" + least
		figure(name+"_keys", float64(sum.keys), "keys")
		figure(name+"_granted_twice", float64(sum.twice), "keys")
		figure(name+"_granted_twice_of_all", share(sum.twice, sum.keys), "%")
		figure(name+"_granted_twice_of_cut", share(sum.twice, sum.cut), "% of those claimed while cut off")
		figure(name+"_same_fence", float64(sum.sameFence), "keys")
		figure(name+"_span", sum.span.Seconds()/float64(*n), "s from the first to the last of a round")
		figure(name+"_twice_on_one_side", float64(sum.oneSide), "keys")
	}
	return nil
}

func figure(name string, value float64, unit string) {
	fmt.Printf("figure: %s = %.4g %s\n", name, value, unit)
}

func share(part, whole int) float64 { return 100 * float64(part) / float64(max(whole, 1)) }

// tally is what a round came to.
type tally struct {
	keys      int           // claimed by both callers, and granted to one at least
	cut       int           // of these, while the network was cut
	twice     int           // granted to both
	sameFence int           // of these, under the same fence
	oneSide   int           // granted twice to one caller: this would be a defect
	span      time.Duration // from the first key that was granted twice to the last
}

func (t *tally) add(o tally) {
	t.keys, t.cut, t.twice = t.keys+o.keys, t.cut+o.cut, t.twice+o.twice
	t.sameFence, t.oneSide, t.span = t.sameFence+o.sameFence, t.oneSide+o.oneSide, t.span+o.span
}
