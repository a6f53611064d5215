package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// TestRoundTripsAreAsWritten compares the counts with testdata/trips.txt: one more is a
// defect, and one less must be written down.
func TestRoundTripsAreAsWritten(t *testing.T) {
	r, err := rig.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	figures, err := measure(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range figures {
		fmt.Fprintf(&got, "%-8s  %-13s  %-9s  %d\n", f.store, f.path, f.what, f.trips)
	}
	want, err := os.ReadFile(filepath.Join("testdata", "trips.txt"))
	if err != nil || got.String() != string(want) {
		t.Errorf("counted (%v):\n%s\nwant:\n%s", err, &got, want)
	}
}

func TestMessagesOfRedisEndWhereTheyDo(t *testing.T) {
	const text = "%1\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n" + ">2\r\n+push\r\n_\r\n" + "-ERR no\r\n"
	r := bufio.NewReader(strings.NewReader(text))
	for _, want := range []struct {
		text string
		ends bool
	}{{"%1\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n", true}, {">2\r\n+push\r\n_\r\n", false}, {"-ERR no\r\n", true}} {
		if got, ends, err := redisProtocol.response(r); err != nil || string(got) != want.text || ends != want.ends {
			t.Errorf("%q, ends %v, %v; want %q, %v", got, ends, err, want.text, want.ends)
		}
	}
}
