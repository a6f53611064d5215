// Package demo shows what retries do to a payments service, without stet and with it. Clients
// send each payment several times, time out and retry, while the service is killed. Then the
// demo compares the clients' responses with the ledger.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Limits of a Config.
const (
	MaxPayments = 5000
	MaxClients  = 20
	MaxKills    = 20
)

// Config is the size of a demo.
type Config struct {
	Payments int       // 1 to MaxPayments
	Clients  int       // that send each payment, 1 to MaxClients
	Kills    int       // of the service in each load, 0 to MaxKills
	Seed     uint64    // of the clients' choices; 0 picks one
	Service  []string  // the command that calls ServiceMain with the arguments that follow
	Progress io.Writer // gets lines of progress; nil for none
}

// Check returns an error that names the flag to change if c is out of bounds.
func (c Config) Check() error {
	for _, f := range []struct {
		flag       string
		n, lo, top int
	}{{"--payments", c.Payments, 1, MaxPayments}, {"--clients", c.Clients, 1, MaxClients}, {"--kills", c.Kills, 0, MaxKills}} {
		if f.n < f.lo || f.n > f.top {
			return fmt.Errorf("%s is %d; it must be %d to %d", f.flag, f.n, f.lo, f.top)
		}
	}
	if len(c.Service) == 0 {
		return errors.New("demo: Config.Service is empty; it must start ServiceMain")
	}
	return nil
}

// Run puts the load on the service without stet, then with it. Report.Violations has the
// promises that stet broke. Run removes everything that it started and wrote.
func Run(ctx context.Context, c Config) (rep Report, err error) {
	if err := c.Check(); err != nil {
		return rep, err
	}
	if rep.Seed = c.Seed; c.Seed == 0 {
		rep.Seed = rand.Uint64N(1_000_000) + 1
		c.Seed = rep.Seed
	}
	dir, err := os.MkdirTemp("", "stet-demo-")
	if err != nil {
		return rep, fmt.Errorf("no temporary folder; TMPDIR says where to make one: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if rep.Without, err = newLoad(c, filepath.Join(dir, "without"), "without stet").run(ctx); err != nil {
		return rep, fmt.Errorf("without stet: %w", err)
	}
	if rep.With, err = newLoad(c, filepath.Join(dir, "with"), "with stet", "-protected").run(ctx); err != nil {
		return rep, fmt.Errorf("with stet: %w", err)
	}
	rep.Violations = violations(rep.With)
	return rep, nil
}
