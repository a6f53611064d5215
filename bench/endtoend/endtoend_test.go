package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/child"
)

func TestMain(m *testing.M) {
	child.Main(childEnv, work) // the test is its own service
	child.Main(behindEnv, serveBehind)
	child.Main(forwardEnv, serveForward)
	os.Exit(m.Run())
}

// short is the smallest run.
func short(compare ...contender) settings {
	return settings{each: 50 * time.Millisecond, rounds: 1, trips: []time.Duration{500 * time.Microsecond}, callers: []int{4}, keys: 16, kept: 16, compare: compare}
}

// TestAShortRunMeasuresAllAndKeepsItsPromises is the whole command at one setting.
func TestAShortRunMeasuresAllAndKeepsItsPromises(t *testing.T) {
	s := short(contenders...)
	s.docs = pages(t)
	r, err := run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.print(); err != nil {
		t.Error(err)
	}
	for _, c := range contenders {
		for _, what := range []string{first, replay} {
			cell := r.find(c.name, what, s.trips[0], 4)
			if want := what == first || c.keeps; (cell != nil) != want {
				t.Errorf("%s, %s: measured %v; want %v", c.name, what, cell != nil, want)
			}
			if cell == nil {
				continue
			}
			if p50 := cell.quantile(500); p50 < s.trips[0] && (!c.near || what != replay) {
				t.Errorf("%s: a trip to the store is %v, and the median of all calls is %v", cell.name(), s.trips[0], p50)
			}
			if rate := cell.rate(); !(rate > 0) || math.IsInf(rate, 0) || cell.each(0) <= 0 {
				t.Errorf("%s: %v requests/s, %v of the service's time by request", cell.name(), rate, cell.each(0))
			}
			if c.redis && what == first && cell.each(2) < 10*time.Microsecond {
				t.Errorf("%s: Redis has used %v by request", cell.name(), cell.each(2))
			}
		}
	}
	if charts, err := filepath.Glob(filepath.Join(s.docs, "charts", "*.svg")); len(charts) != 4 || err != nil {
		t.Errorf("charts: %q, %v", charts, err)
	}
	hasBlock(t, s.docs, "endtoend.md", "| stethttp.NewTx, PostgreSQL | 16 | 0 |")
	hasBlock(t, s.docs, "capacity.md", "| stethttp.New, Redis | 10000 |")
}

// pages returns a folder with copies of the pages that the command writes to.
func pages(t *testing.T) (docs string) {
	t.Helper()
	docs = t.TempDir()
	for _, name := range []string{"endtoend.md", "capacity.md"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(docs, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return docs
}

// hasBlock wants a page to have a line that this run has written.
func hasBlock(t *testing.T, docs, page, line string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(docs, page))
	if err != nil || !strings.Contains(string(b), line) {
		t.Errorf("%s has no %q: %v\n%s", page, line, err, b)
	}
}

func TestAPageWithoutItsBlockIsRefused(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	for text, want := range map[string]string{
		"a\n<!-- figures x -->\nold\n<!-- end -->\nb\n<!-- figures y -->\nkept\n<!-- end -->\n": "a\n<!-- figures x -->\n\nnew\n\n<!-- end -->\nb\n<!-- figures y -->\nkept\n<!-- end -->\n",
		"a\n<!-- figures y -->\nold\n<!-- end -->\n":                                            "",
		"a\n<!-- figures x -->\nold\n":                                                          "",
	} {
		if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := rewrite(page, "x", "new")
		got, rerr := os.ReadFile(page)
		if rerr != nil || (err == nil) != (want != "") || err == nil && string(got) != want || err != nil && string(got) != text {
			t.Errorf("%q becomes %q, %v, %v", text, got, err, rerr)
		}
	}
}

// TestAKeyThatIsExecutedTwiceFailsTheCommand lets the bare handler take the place of stet.
func TestAKeyThatIsExecutedTwiceFailsTheCommand(t *testing.T) {
	bare, _ := named("bare_auto")
	bare.ours = true
	r, err := run(t.Context(), short(bare))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.promises(); err == nil || strings.Count(err.Error(), "a promise is broken") != 2 {
		t.Errorf("two processes executed %v: %v", r.twice, err)
	}
}

func TestPromisesAreHeldToEachCount(t *testing.T) {
	c, _ := named("stet_tx")
	for _, broken := range []report{
		{twice: []twice{{c, 17, 0}}}, {twice: []twice{{c, 16, 1}}}, {twice: []twice{{c, 15, 0}}},
		{sums: []sum{{c, 100, 101, 100}}}, {sums: []sum{{c, 100, 99, 99}}},
	} {
		broken.keys = 16
		if broken.promises() == nil {
			t.Errorf("%v passes", fmt.Sprint(broken.twice, broken.sums))
		}
	}
	whole := report{settings: settings{keys: 16}, twice: []twice{{c, 16, 0}}, sums: []sum{{c, 100, 100, 100}}}
	if err := whole.promises(); err != nil {
		t.Error(err)
	}
}

func TestABusyMachineHasFewerRounds(t *testing.T) {
	const settings, contenders = 18, 9
	for each, want := range map[time.Duration]int{50 * time.Millisecond: 5, 500 * time.Millisecond: 3, 10 * time.Second: 1} {
		r := &report{}
		r.rounds, r.budget = 5, 6*time.Minute
		r.trips, r.callers = make([]time.Duration, 3), make([]int, 3)
		if n := r.affordable(contenders); n != r.rounds {
			t.Fatalf("%d rounds at first; want %d", n, r.rounds)
		}
		r.measured = contenders * 6
		r.measuring = time.Now().Add(-each * contenders * 6)
		if n := r.affordable(contenders); n != want {
			t.Errorf("%v for a measurement: %d rounds of each of %d settings; want %d", each, n, settings, want)
		}
	}
}
