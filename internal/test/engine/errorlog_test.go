package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

func TestFailuresOfTheStoreAreLoggedAtMostEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		down := storetest.Faulty(memory.New(memory.Options{}), func(storetest.Call) storetest.Fault { return storetest.FailBefore })
		e := newEngine(t, down, stet.Options{SweepEvery: -1, StoreTimeout: time.Millisecond, ErrorLog: slog.New(slog.NewTextHandler(&log, nil))})
		call := func() {
			if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindStore {
				t.Errorf("got %v", err)
			}
		}
		for range 5 {
			call()
		}
		if n := strings.Count(log.String(), "a call of the store failed"); n != 1 {
			t.Errorf("%d lines; want 1:\n%s", n, &log)
		}
		time.Sleep(11 * time.Second)
		call()
		if s := log.String(); strings.Count(s, "a call of the store failed") != 2 || !strings.Contains(s, "not_logged=4") || strings.Contains(s, op.Key+" ") || !strings.Contains(s, "level=ERROR") {
			t.Errorf("the log has\n%s", s)
		}
	})
}

func TestUnknownOutcomesAreLogged(t *testing.T) {
	for name, dies := range map[string]bool{"declared by the handler": false, "found by a sweep": true} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			s := memory.New(memory.Options{})
			if dies {
				die(t, s, op)
			}
			e := newEngine(t, s, stet.Options{ErrorLog: slog.New(slog.NewTextHandler(&log, nil))})
			if !dies {
				_, _ = stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
					stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
					return 0, errors.New("timeout")
				})
			}
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			if !strings.Contains(log.String(), "unknown until a verifier or an operator resolves") {
				t.Errorf("%s: the log has %q", name, log.String())
			}
			_ = e.Close()
		})
	}
}
