package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

const keyLetters = "AB" // a letter is a key

var (
	keyNames     = [maxKeys]string{"A", "B"}
	fingerprints = [2]store.Fingerprint{stet.NewFingerprint([]byte("this")), stet.NewFingerprint([]byte("that"))}
)

// world is a schedule being simulated. What the scheduler's goroutine and the
// processes' share is guarded by mu, except in what a call does: then all others
// are at rest.
type world struct {
	c     Config
	setup setup
	start time.Time
	clock Clock
	truth *memory.Store
	store store.Store

	processes [maxProcesses + 1]*process // the last comes when faults have ended
	all       []*process
	clients   [maxClients + 1 + 3*maxKeys]client // but for those of accepted operations
	begun     int

	mu      sync.Mutex
	calls   int
	pending []*call
	late    []*call // still in flight, their callers are gone
	active  int     // clients
	told    []told
	heard   int // of told, how many were judged

	db   database
	txns [maxKeys]*txn // the transactions that hold a key; guarded by mu

	works   store.WorkStore             // store, where operations are accepted
	outbox  store.OutboxStore           // the same
	office  *office                     // the same
	commits func(*world, *workTx) error // the same

	ledgers [maxKeys]ledger
	judge   judge

	script            []step // the steps that were taken
	violation, detail string
	hash              uint64
	count             Count
	log               []string
}

// process is one of the processes that share the store.
type process struct {
	w      *world
	n      int8
	ctx    context.Context // of its calls when they are carried out
	engine *stet.Engine
	dead   bool // nothing that it does matters any more; guarded by world.mu
	closed bool
	runs   [maxKeys]int    // handlers at work; guarded by world.mu
	writes [maxKeys][2]int // the writes of transactions, by request; the same
}

func newWorld(s setup, c Config) *world {
	w := &world{c: c, setup: s, start: time.Now(), hash: 14695981039346656037}
	w.truth = memory.New(memory.Options{MaxRecords: maxKeys, Clock: func() time.Time { return time.Now().Add(w.clock.Skew) }})
	w.store = w.truth
	if c.Store != nil {
		w.store = c.Store(w.truth, &w.clock)
	}
	w.db = server{w}
	if c.database != nil {
		w.db = c.database(server{w})
	}
	if s.work {
		w.works, _ = w.store.(store.WorkStore)
		w.outbox, _ = w.store.(store.OutboxStore)
		w.office, w.commits = new(office), (*world).commitWork
		if c.commit != nil {
			w.commits = c.commit
		}
	}
	for n := range s.processes {
		w.open(n)
	}
	return w
}

// ids are what the keys are known by, which is the same in every schedule.
var ids = func() (ids [maxKeys]store.ID) {
	for i, name := range keyNames {
		ids[i] = store.Digest("", "scope", name)
	}
	return ids
}()

func (w *world) key(id store.ID) int8 {
	for i := range ids {
		if ids[i] == id {
			return int8(i)
		}
	}
	panic("simulate: an ID that no client used")
}

// open starts the n-th process, after the one before is gone.
func (w *world) open(n int) *process {
	p := &process{w: w, n: int8(n)}
	p.ctx = context.WithValue(context.Background(), processOf{}, p)
	o := stet.Options{
		Policy:       stet.Policy{Lease: lease, RunTimeout: runTimeout},
		Classes:      map[string]stet.Policy{w.setup.class: policy(w.setup.class, p.verifier())},
		StoreTimeout: storeTimeout,
		SweepEvery:   -1,
		Observer:     observe.Func(p.observe),
		ErrorLog:     slog.New(slog.DiscardHandler), // a schedule has many failures
	}
	if n == 0 || n == maxProcesses {
		o.SweepEvery = quantum / 2
	}
	var store store.Store = p
	if w.setup.work {
		store = workStore{p}
	}
	e, err := stet.New(store, o)
	if err != nil {
		panic(err)
	}
	p.engine = e
	w.processes[n] = p
	w.all = append(w.all, p)
	return p
}

// observe counts what engines say happens. What one of a dead process says depends
// on which of its goroutines finds out first.
func (p *process) observe(_ context.Context, ev observe.Event) {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead {
		return
	}
	switch ev.Kind {
	case observe.TakenOver:
		w.count.TakenOver++
	case observe.Resolved:
		w.count.Resolved++
	case observe.LeaseLost:
		w.count.LeasesLost++
	case observe.Fenced:
		w.count.Fenced++
	}
}

// letGo orders what the scheduler has done without mu before what others do next.
// It waits for all of them, so there is nothing to guard; but they do not wait
// for it, as far as the race detector can see.
func (w *world) letGo() {
	w.mu.Lock()
	w.mu.Unlock() //nolint:staticcheck // see above
}

// pass lets a quantum of time pass.
func (w *world) pass() {
	w.letGo()
	time.Sleep(quantum)
}

// settle waits until only the scheduler has anything to do, and judges
// the replies to clients in the meantime.
func (w *world) settle() {
	w.letGo()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	// In an order that does not depend on which of two clients was faster.
	slices.SortFunc(w.told[w.heard:], func(a, b told) int { return int(a.n - b.n) })
	for ; w.heard < len(w.told); w.heard++ {
		t := w.told[w.heard]
		w.note("    %v", t)
		w.hear(t)
	}
}

// sorted puts calls in their order.
func sorted(calls []*call) []*call {
	for i := 1; i < len(calls); i++ {
		for j := i; j > 0 && calls[j].before(calls[j-1]); j-- {
			calls[j], calls[j-1] = calls[j-1], calls[j]
		}
	}
	return calls
}

// remove takes c off the calls that wait, and reports whether it was there. The
// caller holds mu, or all others are at rest.
func (w *world) remove(c *call) bool {
	for i, d := range w.pending {
		if d == c {
			w.pending = append(w.pending[:i], w.pending[i+1:]...)
			return true
		}
	}
	return false
}

func (w *world) mix(x uint64) { w.hash = (w.hash ^ x) * 1099511628211 }

func (w *world) note(format string, args ...any) {
	if w.c.Log {
		w.log = append(w.log, fmt.Sprintf("%6s  ", time.Since(w.start))+fmt.Sprintf(format, args...))
	}
}

func (w *world) violate(violation, detail string) {
	w.note("VIOLATION: %s: %s", violation, detail)
	if w.violation == "" {
		w.violation, w.detail = violation, detail
	}
}

// perform takes a step, if it is possible.
func (w *world) perform(s step) {
	calls := uint64(len(w.pending))<<8 | uint64(len(w.late))
	switch s.act {
	case begin:
		if w.begun == w.setup.most() {
			return
		}
		p := w.processes[s.proc]
		if p.dead || p.closed {
			p = w.open(int(s.proc))
		}
		w.note("%v", s)
		w.ask(p, s.client, false)
	case advance:
		w.note("%v", s)
		w.pass()
	case crash, shut:
		p := w.processes[s.proc]
		if p.dead || p.closed {
			return
		}
		w.note("%v", s)
		w.stop(p, s.act == crash)
	case arrive:
		i := find(sorted(w.late), s)
		if i < 0 {
			return
		}
		c := w.late[i]
		w.late = append(w.late[:i], w.late[i+1:]...)
		w.count.Late++
		_ = w.carryOut(c, "late: ") // no caller receives the reply
	default:
		i := find(sorted(w.pending), s)
		if i < 0 {
			return
		}
		w.meetAll(w.pending[i], s.act)
	}
	w.script = append(w.script, s)
	w.mix(calls<<32 | uint64(s.act)<<24 | uint64(s.proc)<<16 | uint64(s.kind)<<8 | uint64(s.nth))
}

// ask lets a client ask.
func (w *world) ask(p *process, c client, last bool) {
	c.n = int8(w.begun)
	w.begun++
	if !w.setup.work {
		w.clients[c.n] = c
	}
	w.mu.Lock()
	w.active++
	t := told{client: c, last: last, came: time.Since(w.start), meets: p.runs[c.key] > 0, against: p.writes[c.key][1-c.print] > 0, process: p}
	w.mu.Unlock()
	w.c.Crew.play(t)
}

// meetAll lets c meet its fate, and with it all calls that cannot be distinguished
// from it: two reads that the engine makes on its own account, of which nothing
// but its random numbers says which is which.
func (w *world) meetAll(c *call, fate act) {
	if c.kind != read && c.kind != peek || c.client >= 0 {
		w.remove(c)
		w.meet(c, fate)
		return
	}
	var twins []*call
	w.pending = slices.DeleteFunc(w.pending, func(d *call) bool {
		twin := d.p == c.p && d.kind == c.kind && d.client < 0 && d.key == c.key
		if twin {
			twins = append(twins, d)
		}
		return twin
	})
	for _, d := range twins {
		w.meet(d, fate)
	}
}

// meet lets a call meet with its fate.
func (w *world) meet(c *call, fate act) {
	switch fate {
	case deliver:
		err := w.carryOut(c, "")
		if c.client >= 0 && !w.setup.work && stet.KindOf(err) == stet.KindMismatch {
			w.judge.refused[c.client] = true
		}
		c.answer <- answer{err: err}
	case lose:
		w.count.Lost++
		_ = w.carryOut(c, "answer lost: ")
		c.answer <- answer{lost: true}
	case drop:
		w.count.Dropped++
		w.note("%v: lost", c)
		c.answer <- answer{lost: true}
	case delay:
		w.note("%v: delayed", c)
		w.postpone(c)
		c.answer <- answer{lost: true}
	}
}

// postpone keeps a call that may be carried out later, if that can matter.
func (w *world) postpone(c *call) {
	if c.kind <= release || c.kind == effect || c.kind == commit || c.kind >= accept && c.kind <= workCommit {
		w.late = append(w.late, c)
	}
}

// carryOut carries a call out and judges its effect.
func (w *world) carryOut(c *call, how string) error {
	w.count.Calls++
	err := c.do()
	w.note("%s%v: %v", how, c, err)
	w.inspect(c, err)
	return err
}

// stop ends a process, by a crash or by closing its engine.
func (w *world) stop(p *process, dies bool) {
	p.closed = true
	if dies {
		w.count.Crashes++
		w.kill(p)
	} else {
		w.count.Closes++
	}
	go p.engine.Close() //nolint:errcheck // always nil
}

// kill makes all later calls of p ineffective. Calls that it has sent may
// still arrive.
func (w *world) kill(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.dead = true
	kept := w.pending[:0]
	for _, c := range sorted(w.pending) {
		if c.p != p {
			kept = append(kept, c)
			continue
		}
		w.postpone(c)
		c.answer <- answer{err: errDead}
	}
	w.pending = kept
	for _, t := range w.txns {
		if t != nil && t.p == p {
			w.hangUp(t)
		}
	}
}
