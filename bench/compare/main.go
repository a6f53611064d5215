// Command compare sends the same requests to services that are protected by stet and by other
// libraries, and counts the executions. It writes the tables of docs/compare.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/stet-go/stet/internal/child"
)

func main() {
	child.Main(childEnv, serve)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	only := f.String("only", "", "regular expression of the names of contenders (default all)")
	cases := f.String("cases", "", "regular expression of the names of scenarios (default all)")
	packages := f.String("packages", "", "folder of the installed packages, which is made if it does not exist, and used again (default a new one)")
	page := f.String("page", "", "page whose tables are written (default none)")
	if err := f.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*only, *cases)
	if err != nil {
		return err
	}
	p, err := newPlace(ctx, chosen.contenders, *packages)
	if err != nil {
		return err
	}
	defer p.close()
	r, err := p.compare(ctx, chosen)
	if err != nil {
		return err
	}
	fmt.Println(r.tables())
	if *page == "" {
		return nil
	}
	return r.write(*page)
}

// choice is what runs.
type choice struct {
	contenders []contender
	scenarios  []scenario
}

func choose(only, cases string) (c choice, err error) {
	whom, err := regexp.Compile(only)
	if err != nil {
		return c, fmt.Errorf("-only: %w", err)
	}
	what, err := regexp.Compile(cases)
	if err != nil {
		return c, fmt.Errorf("-cases: %w", err)
	}
	for _, one := range contenders {
		if whom.MatchString(one.name) {
			c.contenders = append(c.contenders, one)
		}
	}
	for _, s := range scenarios {
		if what.MatchString(s.name) {
			c.scenarios = append(c.scenarios, s)
		}
	}
	if len(c.contenders) == 0 || len(c.scenarios) == 0 {
		return c, fmt.Errorf("%d contenders and %d scenarios are chosen by -only %q and -cases %q; at least one of each is needed", len(c.contenders), len(c.scenarios), only, cases)
	}
	return c, nil
}

// compare runs all scenarios with one contender after the other.
func (p *place) compare(ctx context.Context, c choice) (*result, error) {
	r := &result{choice: c, findings: map[string]map[string]string{}}
	for _, one := range c.contenders {
		r.findings[one.name] = map[string]string{}
		for _, s := range c.scenarios {
			finding, err := p.try(ctx, one, s)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", one.name, s.name, err)
			}
			r.findings[one.name][s.name] = finding
			if finding != passed {
				fmt.Fprintf(os.Stderr, "%s, %s: %s\n", one.name, s.name, finding)
			}
		}
		fmt.Fprintf(os.Stderr, "%s: %d of %d\n", one.name, r.count(one.name, passed), len(c.scenarios))
		p.end(one)
	}
	return r, nil
}

// notInKeys are the characters that a key of all contenders does not have.
var notInKeys = regexp.MustCompile(`[^a-z0-9]+`)

// try runs a scenario.
func (p *place) try(ctx context.Context, c contender, s scenario) (string, error) {
	if s.store && c.store == inMemory {
		return none, nil
	}
	t := &trial{ctx: ctx, place: p, contender: c, key: notInKeys.ReplaceAllString(c.name+"-"+s.name, "-")}
	for i := range t.at {
		var err error
		if t.at[i], err = p.instance(ctx, c, i); err != nil {
			return "", err
		}
	}
	finding, err := s.run(t)
	if t.note != "" {
		fmt.Fprintf(os.Stderr, "%s, %s: %s\n", c.name, s.name, t.note)
	}
	return finding, err
}
