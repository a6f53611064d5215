package redis_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// claims are calls that claim new records, and what each is told.
func (s crowded) claims(ctx context.Context, n int) (reqs []store.ClaimRequest, errs []error, calls []func()) {
	reqs, errs = make([]store.ClaimRequest, n), make([]error, n)
	for i := range reqs {
		reqs[i] = request(stet.NewKey())
		calls = append(calls, func() {
			rec, err := s.Claim(ctx, reqs[i])
			if errs[i] = err; err == nil && rec.Owner != reqs[i].Owner {
				errs[i] = fmt.Errorf("granted to another: %+v", rec)
			}
		})
	}
	return reqs, errs, calls
}

// notKnown requires errors that leave open whether the calls were executed.
func notKnown(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if _, replied := errors.AsType[redis.ReplyError](err); err == nil || replied || errors.Is(err, store.ErrNotDone) {
			t.Errorf("call %d is told %v; want an error that leaves open what was executed", i, err)
		}
	}
}

func TestClientThatFailsIsAnErrorOfEachCallAndKeepsNoLane(t *testing.T) {
	broken := errors.New("the connection broke")
	for name, on := range map[string]func(send func() (any, error)) (any, error){
		"it panics":                  func(func() (any, error)) (any, error) { panic("of a hook") },
		"it ends its goroutine":      func(func() (any, error)) (any, error) { runtime.Goexit(); return nil, nil },
		"its connection breaks":      func(send func() (any, error)) (any, error) { _, _ = send(); return nil, broken },
		"it replies to others":       func(send func() (any, error)) (any, error) { _, _ = send(); return []any{int64(1)}, nil },
		"it replies something else":  func(send func() (any, error)) (any, error) { _, _ = send(); return "OK", nil },
		"it panics when it has sent": func(send func() (any, error)) (any, error) { _, _ = send(); panic("of a hook") },
	} {
		t.Run(name, func(t *testing.T) {
			eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
				reqs, errs, calls := s.claims(t.Context(), 5)
				let, wait := s.gather(t, calls...)
				s.on = func(_ context.Context, _ []string, send func() (any, error)) (any, error) { return on(send) }
				sent := len(s.calls())
				let()
				wait()
				notKnown(t, errs)
				if n := len(s.calls()) - sent; n != 1 {
					t.Errorf("%d scripts were sent", n)
				}
				s.on = nil
				for _, req := range reqs { // the only lane is free again
					if rec := mustClaim(t, s.Store, req); rec.Owner != req.Owner || rec.Attempt != 1 {
						t.Errorf("a claim, again: %+v", rec)
					}
				}
			})
		})
	}
}

func TestCallerThatLeavesWhileItsCallGathersIsToldThatNothingWasSent(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		ctx, cancel := context.WithCancel(t.Context())
		leavers, left, leave := s.claims(ctx, 3)
		_, errs, stay := s.claims(t.Context(), 3)
		var gone sync.WaitGroup
		gone.Add(len(leave))
		calls := []func(){}
		for i := range leave {
			calls = append(calls, func() { defer gone.Done(); leave[i]() }, stay[i])
		}
		let, wait := s.gather(t, calls...)
		cancel()
		gone.Wait() // although no server has answered anything
		for _, err := range left {
			if !errors.Is(err, context.Canceled) || !errors.Is(err, store.ErrNotDone) || !strings.Contains(err.Error(), "nothing was sent") {
				t.Errorf("who left was told %v", err)
			}
		}
		let()
		wait()
		if all := s.calls(); all[len(all)-1] != len(stay) || errors.Join(errs...) != nil {
			t.Errorf("the last script was shared by %d; those who stayed were told %v", all[len(all)-1], errs)
		}
		for _, req := range leavers {
			if rec := mustRead(t, s.Store, req.ID); rec.State != store.None {
				t.Errorf("what was left is %+v", rec)
			}
		}
	})
}

func TestCallerThatLeavesAScriptUnderWayCostsNoOther(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		ctx, cancel := context.WithCancel(t.Context())
		_, left, leave := s.claims(ctx, 1)
		_, errs, stay := s.claims(t.Context(), 3)
		var gone sync.WaitGroup
		gone.Add(1)
		letFirst, wait := s.gather(t, append(stay, func() { defer gone.Done(); leave[0]() })...)
		letSecond := s.hold()
		defer letSecond()
		letFirst() // which opened another gate than that of the second
		stettest.Eventually(t, "the second script is under way", func() bool { return len(s.calls()) == 2 })
		cancel()
		gone.Wait()
		if !errors.Is(left[0], context.Canceled) || errors.Is(left[0], store.ErrNotDone) {
			t.Errorf("who left was told %v", left[0])
		}
		letSecond()
		wait()
		if err := errors.Join(errs...); err != nil {
			t.Errorf("those who stayed were told %v", err)
		}
	})
}

func TestCloseAnswersWhatIsUnderWayAndDoesNotWaitLong(t *testing.T) {
	for _, name := range []string{"a server that answers", "one that does not", "a client that goes on although its context has ended"} {
		t.Run(name, func(t *testing.T) {
			eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
				answers, end, sent := name == "a server that answers", make(chan struct{}), 0
				defer close(end)
				_, errs, calls := s.claims(context.WithoutCancel(t.Context()), 2) // no deadline
				letFirst, wait := s.gather(t, calls...)
				let := s.hold()
				defer let()
				if strings.HasPrefix(name, "a client") {
					let()
					s.on = func(_ context.Context, _ []string, send func() (any, error)) (any, error) {
						if sent++; sent > 1 {
							<-end
						}
						return send()
					}
				}
				letFirst()
				stettest.Eventually(t, "a script is under way", func() bool { return len(s.calls()) == 2 })
				_, told, more := s.claims(context.WithoutCancel(t.Context()), 3)
				var late sync.WaitGroup
				for i, call := range more {
					late.Go(call)
					stettest.Eventually(t, "another gathers", func() bool { return s.Gathered() == i+1 })
				}
				began, closed := time.Now(), make(chan error, 1)
				go func() { closed <- s.Store.Close() }()
				late.Wait()
				for _, err := range told {
					mustContain(t, err, "closed")
				}
				if answers {
					let()
				}
				if err := <-closed; err != nil {
					t.Error(err)
				}
				wait()
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("Close took %v", took)
				}
				if answers && errors.Join(errs...) != nil {
					t.Errorf("those under way were told %v", errs)
				}
				if !answers {
					notKnown(t, errs)
				}
				if n := len(s.calls()); n != 2 {
					t.Errorf("%d scripts were sent", n)
				}
			})
		})
	}
}

func TestCloseTellsNoCallerThatItsOwnContextHasEnded(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		_, errs, calls := s.claims(context.WithoutCancel(t.Context()), 64)
		letFirst, wait := s.gather(t, calls...)
		let := s.hold()
		defer let()
		letFirst()
		stettest.Eventually(t, "a script is under way", func() bool { return len(s.calls()) == 2 })
		if err := s.Store.Close(); err != nil {
			t.Error(err)
		}
		wait()
		notKnown(t, errs)
		for _, err := range errs {
			mustContain(t, err, "the call may have been executed")
			if errors.Is(err, context.Canceled) {
				t.Errorf("a caller whose context goes on was told %v", err)
			}
		}
	})
}

func TestPatientCallerKeepsALaneForAMinuteAtMost(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		patient, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, errs, calls := s.claims(patient, 2)
		var end time.Time
		let, wait := s.gather(t, calls...)
		s.on = func(ctx context.Context, _ []string, send func() (any, error)) (any, error) {
			end, _ = ctx.Deadline()
			return send()
		}
		let()
		wait()
		if left := time.Until(end); end.IsZero() || left > time.Minute || errors.Join(errs...) != nil {
			t.Errorf("a script may take %v; %v", left, errs)
		}
	})
}

func TestDeadServerEndsTheCallsThatGather(t *testing.T) {
	for _, l := range asTheyAre {
		t.Run(l.name, func(t *testing.T) {
			server := rig.NewRedis(t, rig.RedisOptions{})
			s := openCrowded(t, dial(t, l, server.Addr()), redis.Options{CheckEvery: -1})
			mustClaim(t, s.Store, request("warm up"))
			_, errs, calls := s.claims(t.Context(), 30)
			let, wait := s.gather(t, calls...)
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			let()
			wait()
			for _, err := range errs {
				if err == nil || errors.Is(err, store.ErrNotDone) {
					t.Errorf("a call was told %v", err)
				}
			}
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			stettest.Eventually(t, "claims are granted again", func() bool { _, err := s.Claim(t.Context(), request("after")); return err == nil })
		})
	}
}

func TestSharedScriptsAreBounded(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		_, errs, calls := s.claims(t.Context(), 150)
		let, wait := s.gather(t, calls...)
		let()
		wait()
		if all := s.calls(); errors.Join(errs...) != nil || !slices.Equal(all, []int{1, 64, 64, 22}) {
			t.Errorf("150 calls have shared scripts of %d; %v", all, errors.Join(errs...))
		}
		live := make([]store.Claim, 7)
		for i := range live {
			live[i] = mustClaim(t, s.Store, request(fmt.Sprint("large ", i))).Claim()
		}
		calls = nil
		settle := func(c store.Claim, size int) {
			if err := s.Settle(t.Context(), c, completed(strings.Repeat("x", size)), keep); err != nil {
				t.Error(err)
			}
		}
		for i := range 6 {
			calls = append(calls, func() { settle(live[i], 20<<10) })
		}
		sent := len(s.calls())
		let, wait = s.gather(t, calls...)
		settle(live[6], 70<<10) // it waits for no other
		let()
		wait()
		if all := s.calls()[sent+1:]; !slices.Equal(all, []int{3, 3}) {
			t.Errorf("of 20 KB each, %d have shared scripts", all)
		}
	})
}

func TestFullScriptsWaitForNoOtherButAreBounded(t *testing.T) {
	const full, behind = 3, 10
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		s.Share(0, 1, full)
		let := s.hold()
		defer let()
		_, errs, calls := s.claims(t.Context(), 1+full*64+64+behind)
		var wg sync.WaitGroup
		for _, call := range calls {
			wg.Go(call)
		}
		stettest.Eventually(t, "all are under way or gather", func() bool {
			n := s.Gathered()
			for _, calls := range s.calls() {
				n += calls
			}
			return n == len(calls)
		})
		if all := s.calls(); len(all) != 1+full || slices.Min(all[1:]) != 64 {
			t.Errorf("%d calls share scripts that are under way, and %d gather", all, s.Gathered())
		}
		let()
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
}

func TestRepliesToASharedScriptAreBounded(t *testing.T) {
	const size = 400 << 10
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		large := strings.Repeat("x", size)
		var calls []func()
		for i := range 10 {
			req := request(fmt.Sprint("large ", i))
			mustSettle(t, s.Store, mustClaim(t, s.Store, req).Claim(), large)
			req.Owner = store.NewOwner()
			calls = append(calls, func() {
				if rec, err := s.Claim(t.Context(), req); err != nil || string(rec.Result.Body) != large {
					t.Errorf("replay %d: %d bytes, %v", i, len(rec.Result.Body), err)
				}
			})
		}
		fresh, errs, more := s.claims(t.Context(), 2)
		most := 0
		s.on = func(_ context.Context, _ []string, send func() (any, error)) (any, error) {
			reply, err := send()
			replies, _ := reply.([]any)
			n := 0
			for _, one := range replies {
				if parts, _ := one.([]any); len(parts) == 3 {
					n += len(parts[2].(string))
				}
			}
			most = max(most, n)
			return reply, err
		}
		s.inOneScript(t, append(calls, more...)...)
		if err := errors.Join(errs...); err != nil || mustRead(t, s.Store, fresh[0].ID).Attempt != 1 {
			t.Errorf("claims behind large replies: %v", err)
		}
		if most > 1<<20+size+100 || most < size {
			t.Errorf("one reply had %d bytes of results", most)
		}
		sent := len(s.calls())
		for _, call := range calls { // where replies are that large, each goes alone
			call()
		}
		if n := len(s.calls()) - sent; n != 0 {
			t.Errorf("then %d went by shared scripts", n)
		}
	})
}
