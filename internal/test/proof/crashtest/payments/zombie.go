package payments

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
)

// Zombies has the results of processes that were stopped (SIGSTOP) for longer than
// their lease and resumed.
type Zombies struct {
	Refused  int // settles refused because another claim had been granted
	Accepted int // settles accepted because no other process had claimed
	Blocked  int // trials begun again, because the process was stopped while it held SQLite's only writer
	Wrong    []string
}

const (
	zombieLease = 100 * time.Millisecond
	maxBlocked  = 100
)

// RunZombies stops and resumes a process trials times with another claim in
// between, and trials times without. SQLite's file is made in a directory of its
// own.
func RunZombies(ctx context.Context, place crashtest.Place, trials int, progress func(string)) (z Zombies, err error) {
	dir, err := os.MkdirTemp("", "stet-zombies-")
	if err != nil {
		return z, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if place.Dir == "" {
		place.Dir = dir
	}
	if err := place.Prepare(ctx); err != nil {
		return z, err
	}
	back, err := place.Open(ctx, nil)
	if err != nil {
		return z, err
	}
	defer func() { err = errors.Join(err, back.Close()) }()
	engine, err := stet.New(back.Store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Stale: stet.MayRunAgain()}})
	if err != nil {
		return z, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	command, err := child.Order(childEnv, order{Place: place, Addr: "127.0.0.1:0", Zombie: true})
	if err != nil {
		return z, err
	}
	c, err := child.Start(ctx, command)
	if err != nil {
		return z, err
	}
	defer c.Stop(crash.StopGrace)
	for i := 0; i < 2*trials; i++ {
		err := z.trial(ctx, engine, c, i%2 == 0)
		if stet.KindOf(err) == stet.KindStore && z.Blocked < maxBlocked {
			z.Blocked++
			i--
			continue
		}
		if err != nil {
			return z, err
		}
		if i%50 == 49 {
			progress(fmt.Sprintf("%d of %d zombies", i+1, 2*trials))
		}
	}
	return z, nil
}

// trial lets the child claim a key, stops it past its lease, has another process
// claim the key if taken, resumes the child and lets it settle.
func (z *Zombies) trial(ctx context.Context, engine *stet.Engine, c *child.Process, taken bool) error {
	op := stet.Op{Scope: "zombies", Key: stet.NewKey()}
	if said, err := ask(ctx, c, "claim", op.Key); err != nil || said != "claimed" {
		return fmt.Errorf("claim: %q, %w", said, err)
	}
	if err := c.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for lapsed := false; !lapsed; _ = crash.Pause(ctx, zombieLease/10) {
		rec, err := engine.Store().Read(ctx, engine.ID(op.Scope, op.Key))
		if err != nil {
			return errors.Join(err, c.Signal(syscall.SIGCONT))
		}
		lapsed = rec.LeaseLeft <= 0
	}
	var run *stet.Lease
	if taken {
		var err error
		if run, err = engine.Begin(ctx, op); err != nil {
			if err := c.Signal(syscall.SIGCONT); err != nil {
				return err
			}
			_, said := ask(ctx, c, "settle", op.Key) // releases it
			return errors.Join(err, said)
		}
	}
	if err := c.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	said, err := ask(ctx, c, "settle", op.Key)
	switch {
	case err != nil:
		return err
	case taken && said == "fenced":
		z.Refused++
	case !taken && said == "settled":
		z.Accepted++
	default:
		z.Wrong = append(z.Wrong, fmt.Sprintf("taken %v: the zombie's settle was %s", taken, said))
	}
	if run != nil {
		return run.Settle(ctx, stet.Outcome{Body: []byte("the living")})
	}
	return nil
}

func ask(ctx context.Context, c *child.Process, what, key string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.Addr+"/"+what, strings.NewReader(key))
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	return string(said), err
}

// serveZombie is the child: it claims and settles unchanged told.
func serveZombie(ctx context.Context, o order) (err error) {
	back, err := o.Place.Open(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back.Close()) }()
	engine, err := stet.New(back.Store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Lease: zombieLease}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	var mu sync.Mutex
	runs := make(map[string]*stet.Lease)
	mux := http.NewServeMux()
	say := func(pattern string, f func(key string) string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			key, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprint(w, f(string(key)))
		})
	}
	say("POST /claim", func(key string) string {
		run, err := engine.Begin(ctx, stet.Op{Scope: "zombies", Key: key})
		if err != nil {
			return err.Error()
		}
		runs[key] = run
		return "claimed"
	})
	say("POST /settle", func(key string) string {
		run := runs[key]
		delete(runs, key)
		err := run.Settle(ctx, stet.Outcome{Body: []byte("the zombie")})
		switch {
		case err == nil:
			return "settled"
		case stet.KindOf(err) == stet.KindFenced:
			return "fenced"
		default:
			return err.Error()
		}
	})
	return serveAt(ctx, o.Addr, mux)
}
