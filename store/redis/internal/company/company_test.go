package company

import (
	"context"
	"testing"
	"time"
)

func TestNoCallersPatienceCostsTheOthersALane(t *testing.T) {
	until := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	self := func(ctx context.Context) context.Context { return ctx }
	for name, c := range map[string]struct {
		calls []context.Context
		want  time.Duration
	}{
		"the latest deadline":   {[]context.Context{until(time.Second), until(20 * time.Second), until(2 * time.Second)}, 20 * time.Second},
		"no deadline":           {[]context.Context{until(time.Second), t.Context()}, Longest},
		"a deadline in an hour": {[]context.Context{until(time.Hour), until(time.Second)}, Longest},
	} {
		if got := time.Until(Latest(c.calls, self)); got > c.want || got < c.want-10*time.Second {
			t.Errorf("%s: %v; want %v", name, got, c.want)
		}
	}
}

func TestSizeOfAReplyIsThatOfItsTexts(t *testing.T) {
	if n := SizeOf([]any{"four", int64(7), nil, []any{"of", "it"}}); n != 8 {
		t.Errorf("%d; want 8", n)
	}
}
