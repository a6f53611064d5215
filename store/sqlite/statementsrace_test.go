package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
)

// Go and processes of Python race for the same keys, and those are killed at any point.
// Each key is charged once.
func TestGoAndPythonTogetherChargeOnce(t *testing.T) {
	s, _, te, file := shared(t)
	const keys, callers = 60, 3
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	page := filepath.Join(stettest.ModuleRoot(t), "docs", "sql-sqlite.md")
	mortals := make([]*mortal, callers)
	for i := range mortals {
		mortals[i] = &mortal{page: page, file: file}
		defer mortals[i].end()
	}
	var byGo atomic.Int64
	for k := range keys {
		key := fmt.Sprint("key ", k)
		var wg sync.WaitGroup
		var once sync.Once
		begun := make(chan struct{}) // Go is quicker: every other time Python has a try before it
		begin := func() { once.Do(func() { close(begun) }) }
		if k%2 == 0 {
			begin()
		}
		for i := range callers {
			wg.Go(func() { mortals[i].charge(ctx, t, key, begin) })
			wg.Go(func() {
				<-begun
				for ctx.Err() == nil {
					res, err := stet.DoTx(ctx, te, opOf(key), chargeByGo(key))
					if err == nil && !res.Replayed {
						byGo.Add(1)
					}
					if err == nil || stet.KindOf(err) == stet.KindForeign {
						break
					}
				}
			})
		}
		wg.Wait()
	}
	if ctx.Err() != nil {
		t.Fatal("it did not come to an end")
	}
	var total, twice, settled, byPython, kills int
	err := s.DB().QueryRow(`SELECT (SELECT count(*) FROM charges), (SELECT count(*) FROM (SELECT 1 FROM charges GROUP BY name HAVING count(*) > 1)),
		(SELECT count(*) FROM stet_records WHERE state = 2)`).Scan(&total, &twice, &settled)
	if err != nil || total != keys || twice != 0 || settled != keys {
		t.Errorf("%d charges, %d keys twice, %d outcomes, %v; want %d, none, %d", total, twice, settled, err, keys, keys)
	}
	for _, m := range mortals {
		byPython, kills = byPython+m.ran, kills+m.kills
	}
	if byGo.Load() < 5 || byPython < 5 || kills < 20 {
		t.Errorf("%d runs by Go, %d acknowledged by Python, %d processes killed; want 5, 5 and 20", byGo.Load(), byPython, kills)
	}
	t.Logf("%d runs by Go, %d acknowledged by Python, %d processes killed", byGo.Load(), byPython, kills)
}

// mortal charges in processes that are killed: at points of their own, and at any moment.
type mortal struct {
	page, file string
	p          *python
	chance     *time.Timer
	ran, kills int
}

func (m *mortal) end() {
	if m.p != nil {
		m.chance.Stop()
		m.p.end()
		m.p = nil
	}
}

// charge charges the key, and calls heard when a process has answered or has died.
func (m *mortal) charge(ctx context.Context, t *testing.T, key string, heard func()) {
	defer heard()
	for ctx.Err() == nil {
		if m.p == nil {
			p, err := newPython(m.page, m.file)
			if err != nil {
				t.Error(err)
				return
			}
			m.p = p
			process := p.cmd.Process
			m.chance = time.AfterFunc(50*time.Millisecond+rand.N(500*time.Millisecond), func() { _ = process.Kill() })
		}
		points := []string{"", "", "", "", "charged", "settled", "committed"}
		got, err := m.p.order(charging(key, "die", points[rand.IntN(len(points))]))
		heard()
		switch {
		case err != nil:
			m.kills++
			m.end()
		case got.Action == "run":
			m.ran++
			return
		case got.Action == "replay":
			return
		}
	}
}
