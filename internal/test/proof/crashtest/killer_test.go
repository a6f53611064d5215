package crashtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
)

const childEnv = "STET_CRASHTEST_KERNEL"

// passed is the point that the children of these tests pass, three times.
const passed fault.Point = "passed"

func TestMain(m *testing.M) {
	child.Main(childEnv, func(ctx context.Context, v Visit) error {
		child.Ready(os.Stdout, "")
		if v.Point == "ends" {
			return errors.New("by itself")
		}
		mortal := v.Mortal(nil)
		for range 3 {
			mortal.Pass(passed)
		}
		<-ctx.Done()
		return nil
	})
	os.Exit(m.Run())
}

// killAt has one process killed at each visit, and returns what became of them.
func killAt(t *testing.T, s *Killer, visits ...Visit) (Tally, error) {
	t.Helper()
	s.Command = func(_ *Lane, v Visit, _ int) (child.Command, error) { return child.Order(childEnv, v) }
	s.Reach = func(v Visit) time.Duration {
		if v.N > 3 {
			return 100 * time.Millisecond
		}
		return time.Minute
	}
	plan := NewPlan(rand.New(rand.NewPCG(1, 1)), len(visits), visits, nil)
	s.Lanes = []*Lane{{Plan: plan}, {Plan: plan}}
	err := s.While(t.Context(), func(ctx context.Context) error { return s.Befall(ctx) })
	for _, l := range s.Lanes {
		if p := l.Process(); p != nil {
			select {
			case <-p.Exited():
			default:
				t.Error("a process outlives its killer")
			}
		}
	}
	return s.Tally(), err
}

func TestProcessesCountWhereTheyDie(t *testing.T) {
	t.Parallel()
	tally, err := killAt(t, new(Killer), Visit{Point: passed, N: 1}, Visit{Point: passed, N: 3}, Visit{Point: passed, N: 4}, Visit{Point: passed, N: 2, Stop: 200 * time.Millisecond})
	if err != nil || tally.Kills != 4 || tally.At[passed] != 2 || tally.At[Anywhere] != 1 || tally.At[Frozen] != 1 || tally.AtPoints() != 2 {
		t.Errorf("got %+v, %v; want tally.Kills == 4, tally.At[passed] == 2, tally.At[Anywhere] == 1, tally.At[Frozen] == 1, tally.AtPoints() == 2, no error", tally, err)
	}
}

func TestOnlyKillsAtPointsCount_PointsRequired(t *testing.T) {
	t.Parallel()
	tally, err := killAt(t, &Killer{AtPoints: true}, Visit{Point: passed, N: 1}, Visit{Point: passed, N: 4})
	if err != nil || tally.Kills != 2 || tally.At[passed] != 2 || tally.Missed == 0 {
		t.Errorf("got %+v, %v; want tally.Kills == 2, tally.At[passed] == 2, tally.Missed != 0, no error", tally, err)
	}
	tally, err = killAt(t, &Killer{AtPoints: true}, Visit{Point: passed, N: 4})
	if err == nil || !strings.Contains(err.Error(), "without being killed") {
		t.Errorf("a killer whose processes never come by continues: %+v, %v", tally, err)
	}
}

func TestProcessThatEndsByItselfIsAnErrorUnlessItsServerIsAway(t *testing.T) {
	t.Parallel()
	if _, err := killAt(t, new(Killer), Visit{Point: "ends", N: 1}); err == nil || !strings.Contains(err.Error(), "by itself") {
		t.Errorf("the error is %v", err)
	}
	away := &Killer{Restarts: 1, Restart: func(context.Context) error { return nil }}
	tally, err := killAt(t, away, Visit{Point: passed, N: 1}, Visit{Point: passed, N: 2})
	if err != nil || tally.Restarts != 1 {
		t.Errorf("got %+v, %v; want tally.Restarts == 1, no error", tally, err)
	}
	if _, err := killAt(t, &Killer{Killed: func(int) error { return errors.New("enough") }}, Visit{Point: passed, N: 1}); err == nil {
		t.Error("the callback Killed cannot end a killer")
	}
}
