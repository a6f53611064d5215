package canonical_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/canonical"
)

// hostile are bodies of n bytes or so that are made to cost more than they weigh.
func hostile(n int) map[string]string {
	nested := func(open, shut string) string {
		depth := min(9_000, n/(len(open)+len(shut)))
		return strings.Repeat(open, depth) + strings.Repeat("0,", (n-depth*(len(open)+len(shut)))/2) + "0" + strings.Repeat(shut, depth)
	}
	name := strings.Repeat("n", 10)
	var backwards, spread strings.Builder
	for i := n / 14; i > 0; i-- {
		fmt.Fprintf(&backwards, `"%08d":0,`, i)
	}
	for i := range n / 2 / 9_000 * 9_000 / 12 {
		fmt.Fprintf(&spread, `{"a":%d},`, i%10)
	}
	return map[string]string{
		"elements":                       "[" + strings.Repeat("0,", n/2) + "0]",
		"elements below a long name":     `{"` + strings.Repeat("x", n/2) + `":[` + strings.Repeat("0,", n/4) + "0]}",
		"empty arrays":                   "[" + strings.Repeat("[],", n/3) + "0]",
		"objects in arrays":              "[" + spread.String() + "0]",
		"elements below many arrays":     nested("[", "]"),
		"elements below many objects":    nested(`{"`+name+`":`, "}"),
		"names in the wrong order":       "{" + backwards.String() + `"0":0}`,
		"the wrong order at every level": strings.Repeat(`{"b":`, min(9_000, n/24)) + `"` + strings.Repeat("x", n/2) + `"` + strings.Repeat(`,"a":0}`, min(9_000, n/24)),
		"escapes":                        `["` + strings.Repeat(`\u0061`, n/6) + `"]`,
		"cut off":                        strings.Repeat(`{"a":[`, 4_000) + strings.Repeat("0,", n/2),
	}
}

// excludes are what a configuration may leave out.
var excludes = [][]string{nil, {"/sent_at"}, {"/x/y/z", "/0/0/0", "/9999999/a"}, {"/" + strings.Repeat("0/", 200) + "0", "/b/b/b/b/b/a"}}

// A request is canonicalised before anybody knows who sent it.
func TestMegabyteTakesLessThanATenthOfASecond(t *testing.T) {
	for name, body := range hostile((1 << 20) / slowness) {
		for _, exclude := range excludes {
			f, err := canonical.JSON(exclude...)
			if err != nil {
				t.Fatal(err)
			}
			best := time.Hour
			for range 5 {
				elapsed := stopwatch()
				if _, err := f("application/json", []byte(body)); err != nil {
					t.Fatal(err)
				}
				if best = min(best, elapsed()); best < 100*time.Millisecond {
					break
				}
			}
			if best > 100*time.Millisecond {
				t.Errorf("%s (%d bytes), less %.40q: %v", name, len(body), exclude, best)
			}
		}
	}
}

// Memory is counted exactly, so it shows what time hides.
func TestMemoryIsAMultipleOfTheBody(t *testing.T) {
	for _, size := range []int{1 << 16, (1 << 20) / slowness} {
		for name, body := range hostile(size) {
			for _, exclude := range excludes {
				f, err := canonical.JSON(exclude...)
				if err != nil {
					t.Fatal(err)
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, _ = f("application/json", []byte(body))
				runtime.ReadMemStats(&after)
				if n := after.TotalAlloc - before.TotalAlloc; n > 48*uint64(len(body))+1<<20 {
					t.Errorf("%s, less %.40q: %d bytes for %d", name, exclude, n, len(body))
				}
			}
		}
	}
}
