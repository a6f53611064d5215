package proxy

import (
	"cmp"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// NewRecords bounds how many new operations leave a record, so that no caller can fill the
// store. Each process has its own count, and a reload begins at 0.
type NewRecords struct {
	Total    int      `yaml:"total"`
	PerScope int      `yaml:"per_scope"`
	Every    Duration `yaml:"every"`
}

const defaultEvery = time.Hour

func (n *NewRecords) check() error {
	switch {
	case n == nil:
		return nil
	case n.Total <= 0:
		return at("total", "%d; give it 1 or more: how many records may all callers together leave in the time of every?", n.Total)
	case n.PerScope < 0 || n.PerScope > n.Total:
		return at("per_scope", "%d; give it 1 to total, %d", n.PerScope, n.Total)
	}
	return nil
}

// budget counts new records in windows of time. A nil budget has no limit.
type budget struct {
	total, perScope int
	every           time.Duration
	log             *slog.Logger

	mu     sync.Mutex
	number int // of the window, to know it by
	ends   time.Time
	taken  int
	scopes map[store.ID]int // no more than total
	said   bool             // whether the log has it, in this window
}

func newBudget(n *NewRecords, log *slog.Logger) *budget {
	if n == nil {
		return nil
	}
	return &budget{total: n.Total, perScope: cmp.Or(n.PerScope, n.Total), every: cmp.Or(time.Duration(n.Every), defaultEvery), log: log}
}

// take counts a new record of a scope. Call giveBack if the operation leaves no record. If the
// budget is used up, giveBack is nil, and after is the time until the next window.
func (b *budget) take(scope store.ID) (giveBack func(), after time.Duration) {
	if b == nil {
		return func() {}, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !now.Before(b.ends) {
		b.number++
		b.ends, b.taken, b.scopes, b.said = now.Add(b.every), 0, map[store.ID]int{}, false
	}
	if b.taken >= b.total || b.scopes[scope] >= b.perScope {
		if !b.said {
			b.log.Warn("proxy: new operations are refused: new_records is used up", slog.Int("of_all", b.taken),
				slog.Int("of_this_scope", b.scopes[scope]), slog.Time("until", b.ends))
		}
		b.said = true
		return nil, b.ends.Sub(now)
	}
	b.taken++
	b.scopes[scope]++
	number := b.number
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.number != number {
			return
		}
		b.taken--
		if b.scopes[scope]--; b.scopes[scope] == 0 {
			delete(b.scopes, scope)
		}
	}, 0
}

// takeOrRefuse is take. It refuses the request if the budget is used up.
func (b *budget) takeOrRefuse(w http.ResponseWriter, problems manner, scope string) (giveBack func()) {
	giveBack, after := b.take(store.DigestScope("", scope))
	if giveBack == nil {
		c := tooManyOperations
		c.retryAfter = after
		problems.refuse(w, &c)
	}
	return giveBack
}

// afford counts the record of a new operation, or refuses the operation. The caller calls back
// after the run.
func (f *forwarder) afford(w http.ResponseWriter, problems manner, run *stet.Run, t *trip) (back func(), ok bool) {
	if run.Attempt() > 1 {
		return func() {}, true // its record is there already
	}
	giveBack := f.budget.takeOrRefuse(w, problems, run.Op().Scope)
	if giveBack == nil {
		run.Declare(stet.NotExecuted, 0)
		return nil, false
	}
	return func() {
		if t.undone || run.Declared() == stet.NotExecuted {
			giveBack()
		}
	}, true
}
