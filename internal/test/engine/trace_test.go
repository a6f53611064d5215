package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store/memory"
)

func TestReplayReturnsTheTraceOfItsRun(t *testing.T) {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	defer engine.Close()
	for name, c := range map[string]struct{ trace, want string }{
		"kept":     {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"none":     {"", ""},
		"too long": {strings.Repeat("t", observe.MaxTrace+1), ""},
	} {
		told := ""
		ctx := observe.WithTrace(t.Context(), &observe.Trace{Run: func() string { return c.trace }, Replayed: func(s string) { told += s }})
		for range 2 {
			if told != "" {
				t.Errorf("%s: the first run got a trace: %q", name, told)
			}
			if _, err := stet.Do(ctx, engine, stet.Op{Scope: "s", Key: name}, func(context.Context) (int, error) { return 1, nil }); err != nil {
				t.Fatalf("Do: %v", err)
			}
		}
		if told != c.want {
			t.Errorf("%s: the replay got %q; want %q", name, told, c.want)
		}
	}
}
