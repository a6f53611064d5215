// Package demo shows what retries do to a payments service, without stet and
// with it: a storm of concurrent, impatient clients against a server process
// that is killed again and again, and then a look into the ledger.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// Limits of a Config.
const (
	MaxPayments = 5000
	MaxAttempts = 20
	MaxKills    = 20
)

// Config says how large the demonstration is.
type Config struct {
	Payments int    // 1 to MaxPayments
	Attempts int    // clients that send each payment, 1 to MaxAttempts
	Kills    int    // SIGKILLs in each storm, 0 to MaxKills
	Seed     uint64 // of what the clients do; 0 picks one

	// Service is the command line that calls ServiceMain with what follows
	// it: the server runs as a process of its own, so that it can be killed.
	Service []string
	// Proxy, unless it is empty, has the service protected from outside: it is
	// the command line that runs a proxy with the arguments that follow it, as
	// a child that calls child.Ready. The storm with stet is then of the service
	// without stet, behind the proxy, and both are killed in turn.
	Proxy []string
	// Store is the proxy's --store. Default: a file in the temporary folder.
	Store string

	// Async has the service answer 202, and charge afterwards: the clients ask
	// what became of each payment.
	Async bool

	// Progress is where progress goes, in plain lines; on a Terminal one
	// line is rewritten. Nil: nowhere.
	Progress io.Writer
	Terminal bool

	within time.Duration // in place of limit, for tests
}

// Check returns an error that names the flag to change if c is out of bounds.
func (c Config) Check() error {
	for _, f := range []struct {
		flag       string
		n, lo, hi  int
		unit, note string
	}{
		{"--payments", c.Payments, 1, MaxPayments, "payments", ""},
		{"--attempts", c.Attempts, 1, MaxAttempts, "clients for each payment", ""},
		{"--kills", c.Kills, 0, MaxKills, "kills", ""},
	} {
		if f.n < f.lo || f.n > f.hi {
			return fmt.Errorf("%s is %d; give it %d to %d %s", f.flag, f.n, f.lo, f.hi, f.unit)
		}
	}
	if len(c.Service) == 0 {
		return errors.New("demo: Config.Service is empty; it must start ServiceMain")
	}
	switch {
	case c.Async && len(c.Proxy) > 0:
		return errors.New("--async is a service with stet in it; leave --proxy out")
	case c.Store != "" && len(c.Proxy) == 0:
		return errors.New("--store is for the proxy; add --proxy, or leave --store out")
	case c.Store == "memory":
		return errors.New("--store is memory, which forgets everything when the proxy is killed; give a file or a URL")
	}
	return nil
}

// limit bounds one storm. A usual one takes a fifth of it, or less.
func (c Config) limit() time.Duration {
	if c.within > 0 {
		return c.within
	}
	d := 10*time.Second + time.Duration(c.Payments*c.Attempts)*4*time.Millisecond
	if c.Async { // each client asks again and again, and after a kill leases have to run out
		d = 3*d + time.Duration(c.Kills)*(startWithin+workLease+workRecovery+workAgain)
	}
	if len(c.Proxy) > 0 { // twice the work, and after a kill of the proxy its leases have to run out
		d = 2*d + time.Duration(c.Kills)*(startWithin+proxyLease)
	}
	return d
}

// Report is what came of both storms.
type Report struct {
	Without    Result   `json:"without"`
	With       Result   `json:"with"`
	Violations []string `json:"violations"` // what stet promised and did not keep
	Proxied    bool     `json:"proxied"`    // stet was in front of the service, not in it
	Async      bool     `json:"async"`      // the service answered 202, and charged afterwards
	Seed       uint64   `json:"seed"`
	Seconds    float64  `json:"seconds"`
}

// Run runs the storm without stet and then with it. The report's Violations say
// whether stet kept its promises; the error, whether there was a report to make.
// Everything that Run starts and writes is gone when it returns.
func Run(ctx context.Context, c Config) (rep Report, err error) {
	if err := c.Check(); err != nil {
		return rep, err
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64N(1_000_000) + 1
	}
	began := time.Now()
	dir, err := os.MkdirTemp("", "stet-demo-")
	if err != nil {
		return rep, fmt.Errorf("no temporary folder; TMPDIR says where to make one: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if rep.Without, err = runStorm(ctx, c, filepath.Join(dir, "without"), false); err != nil {
		return rep, fmt.Errorf("the storm without stet: %w", err)
	}
	if rep.With, err = runStorm(ctx, c, filepath.Join(dir, "with"), true); err != nil {
		return rep, fmt.Errorf("the storm with stet: %w", err)
	}
	rep.Violations, rep.Proxied, rep.Async = violations(rep.With), len(c.Proxy) > 0, c.Async
	rep.Seed, rep.Seconds = c.Seed, seconds(time.Since(began))
	return rep, nil
}

func seconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Millisecond)) / float64(time.Second)
}
