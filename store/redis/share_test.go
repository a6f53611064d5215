package redis_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/storetest"
)

// between stands between a store and a client of one server. It notes which commands of the
// store share a script, and holds them up while a test wants it to.
type between struct {
	conn
	on func(ctx context.Context, args []string, send func() (any, error)) (any, error) // instead of send, for what shares a script

	mu     sync.Mutex
	shared [][]string    // as they were sent
	codes  []string      // of the errors that the server has replied to what was sent alone
	gate   chan struct{} // of those that share a script
}

func (b *between) SingleServer() bool { return true }

func (b *between) Do(ctx context.Context, key string, args ...string) (any, error) {
	send := func() (any, error) { return b.conn.Do(ctx, key, args...) }
	if len(args) < 2 || args[1] != redis.SharedScript && !strings.Contains(args[1], "local function claim(") {
		reply, err := send()
		if e, ok := errors.AsType[redis.ReplyError](err); ok {
			b.mu.Lock()
			defer b.mu.Unlock()
			code, _, _ := strings.Cut(string(e), " ")
			b.codes = append(b.codes, code)
		}
		return reply, err
	}
	b.mu.Lock()
	gate := b.gate
	if args[0] == "EVALSHA" {
		b.shared = append(b.shared, args)
	} else {
		gate = nil // it is the same again, as the server did not know the script
	}
	b.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if b.on != nil {
		return b.on(ctx, args, send)
	}
	return send()
}

// calls are how many share each script that was sent.
func (b *between) calls() (all []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, args := range b.shared {
		all = append(all, slices.Index(args[3:], "1048576")/5)
	}
	return all
}

// hold holds up what shares a script until let is called.
func (b *between) hold() (let func()) {
	gate := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gate = gate
	return sync.OnceFunc(func() {
		b.mu.Lock()
		if b.gate == gate {
			b.gate = nil
		}
		b.mu.Unlock()
		close(gate)
	})
}

// crowded is a store all of whose claims and settlements share scripts, one script at a time.
type crowded struct {
	*redis.Store
	*between
}

func openCrowded(t *testing.T, c conn, o redis.Options) crowded {
	t.Helper()
	b := &between{conn: c}
	s := open(t, b, o)
	if !s.Shares() {
		t.Fatal("calls share no scripts")
	}
	s.Share(0, 1, 0)
	return crowded{s, b}
}

// eachCrowded runs a test with each library on a server.
func eachCrowded(t *testing.T, server *rig.RedisServer, f func(t *testing.T, s crowded)) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) { f(t, openCrowded(t, dial(t, l, server.Addr()), redis.Options{})) })
	}
}

// gather has a script held up, and calls gather behind it in their order, until let is
// called. wait waits until all have returned.
func (s crowded) gather(t *testing.T, calls ...func()) (let, wait func()) {
	t.Helper()
	let = s.hold()
	t.Cleanup(let)
	before := len(s.calls())
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = s.Claim(context.WithoutCancel(t.Context()), request(stet.NewKey())) })
	stettest.Eventually(t, "the first is under way", func() bool { return len(s.calls()) == before+1 })
	for i, call := range calls {
		wg.Go(call)
		stettest.Eventually(t, "another gathers", func() bool { return s.Gathered() == i+1 })
	}
	return let, wg.Wait
}

// inOneScript has calls share one script, in their order.
func (s crowded) inOneScript(t *testing.T, calls ...func()) {
	t.Helper()
	let, wait := s.gather(t, calls...)
	let()
	wait()
	if all := s.calls(); all[len(all)-1] != len(calls) {
		t.Errorf("of %d calls %d shared the last script", len(calls), all[len(all)-1])
	}
}

func TestStoreKeepsTheContractInSharedScripts(t *testing.T) {
	t.Parallel()
	addr := rig.Redis(t).Addr()
	for _, l := range libraryOf("rueidis") {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			h := contract(dial(t, l, addr), redis.Options{})
			opened := h.New
			h.New = func(t testing.TB) store.Store {
				s := opened(t)
				s.(*redis.Store).Share(0, 4, 28)
				return s
			}
			storetest.Run(t, h)
		})
	}
}

func TestLoneCallersShareNoScriptAndManyDo(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		b := &between{conn: c}
		s := open(t, b, redis.Options{})
		both := func(int) error {
			rec, err := s.Claim(t.Context(), request(stet.NewKey()))
			if err != nil {
				return err
			}
			return s.Settle(t.Context(), rec.Claim(), completed("x"), keep)
		}
		together(t, 16, 50, both)
		if n := len(b.calls()); n != 0 {
			t.Errorf("16 callers have shared %d scripts", n)
		}
		together(t, 150, 20, both)
		if all := b.calls(); len(all) == 0 || slices.Max(all) < 2 || slices.Max(all) > 64 {
			t.Errorf("150 callers have shared scripts of %d calls", all)
		}
	})
}

// asAlone are calls on records of all kinds, and what each returns. It is the same with every
// store.
func asAlone(t *testing.T, c conn, s store.Store, prefix string, told []string) (calls []func()) {
	ctx := t.Context()
	say := func(i int, rec store.Record, err error) {
		told[i] = fmt.Sprint(rec.State, rec.Attempt, string(rec.Result.Body), " mismatch ", errors.Is(err, store.ErrMismatch), " fenced ", errors.Is(err, store.ErrFenced),
			" damaged ", errors.Is(err, store.ErrDamaged), " failed ", err != nil)
	}
	for i := range 64 {
		req := request(fmt.Sprint("op ", i))
		req.ID[8], req.ID[9] = 0, byte(i%3)
		claim := func() { rec, err := s.Claim(ctx, req); say(i, rec, err) }
		before := func() store.Claim { return mustClaim(t, s, req).Claim() }
		settle := func(c store.Claim, result string) func() {
			return func() { say(i, store.Record{}, s.Settle(ctx, c, completed(result), keep)) }
		}
		switch i % 9 {
		case 0: // a new one
		case 1:
			mustSettle(t, s, before(), "a replay")
			req.Owner = store.NewOwner()
		case 2:
			before()
			req.Owner, req.Fingerprint[0] = store.NewOwner(), req.Fingerprint[0]^1
		case 3:
			before()
			spoilt["a newer version"](t, c, recordKey(prefix, req.ID))
		case 4:
			before()
			spoilt["another type"](t, c, recordKey(prefix, req.ID))
		case 5:
			claim = settle(before(), strings.Repeat("r", i))
		case 6:
			stale := before()
			stale.Fence--
			claim = settle(stale, "x")
		case 7:
			if err := s.Release(ctx, before(), keep); err != nil {
				t.Fatal(err)
			}
			req.Owner = store.NewOwner()
		case 8: // an error that the script does not expect
			mustSettle(t, s, before(), "x")
			spoilt["another type"](t, c, strings.Replace(recordKey(prefix, req.ID), ":op:", ":result:", 1))
		}
		calls = append(calls, claim)
	}
	return calls
}

func TestEachCallInASharedScriptGetsWhatItGetsAlone(t *testing.T) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			c := dial(t, l, rig.Redis(t).Addr())
			alone, prefix := make([]string, 64), fresh()
			for _, call := range asAlone(t, c, open(t, alonely{c}, redis.Options{Prefix: prefix}), prefix, alone) {
				call()
			}
			shared, prefix := make([]string, 64), fresh()
			s := openCrowded(t, c, redis.Options{Prefix: prefix})
			calls := asAlone(t, c, s.Store, prefix, shared)
			do(t, c, "SCRIPT", "FLUSH")
			s.inOneScript(t, calls...)
			for i, want := range alone {
				if shared[i] != want {
					t.Errorf("call %d, of kind %d, is told %s; alone it is told %s", i, i%9, shared[i], want)
				}
			}
			if i := slices.Index(alone, ""); i >= 0 {
				t.Errorf("call %d was not made", i)
			}
		})
	}
}

// alonely hides that a client has one server.
type alonely struct{ redis.Client }

func TestFencesOfASharedScriptGrow(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		fences := make([]int64, 64)
		var calls []func()
		for i := range fences {
			req := request(fmt.Sprint(i))
			req.ID[8], req.ID[9] = 0, byte(i%2)
			calls = append(calls, func() {
				if rec, err := s.Claim(t.Context(), req); err != nil || rec.Owner != req.Owner {
					t.Errorf("claim %d: %+v, %v", i, rec, err)
				} else {
					fences[i] = rec.Fence
				}
			})
		}
		s.inOneScript(t, calls...)
		for i := 2; i < len(fences); i++ {
			if fences[i] <= fences[i-2] {
				t.Errorf("fence %d of the shard is %d, and the one before is %d", i/2, fences[i], fences[i-2])
			}
		}
	})
}

func TestOneRecordInASharedScriptIsGrantedOnce(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		reqs := make([]store.ClaimRequest, 8)
		recs := make([]store.Record, len(reqs))
		var calls []func()
		for i := range reqs {
			if reqs[i] = request("one"); i > 0 {
				reqs[i].Owner = store.NewOwner()
			}
			if i == 5 {
				reqs[i].Owner = reqs[0].Owner // its reply was lost
			}
			calls = append(calls, func() {
				var err error
				if recs[i], err = s.Claim(t.Context(), reqs[i]); err != nil {
					t.Error(err)
				}
			})
		}
		s.inOneScript(t, calls...)
		for i, rec := range recs {
			if rec.Owner != reqs[0].Owner || rec.Fence != recs[0].Fence || rec.Attempt != 1 || rec.State != store.Running {
				t.Errorf("claim %d: %+v", i, rec)
			}
		}
		settled := make([]error, 3)
		calls = nil
		for i := range settled {
			calls = append(calls, func() { settled[i] = s.Settle(t.Context(), recs[0].Claim(), completed(fmt.Sprint(i/2)), keep) })
		}
		calls = append(calls, func() {
			if rec, err := s.Claim(t.Context(), reqs[1]); err != nil || string(rec.Result.Body) != "0" {
				t.Errorf("the claim after the settlement: %+v, %v", rec, err)
			}
		})
		s.inOneScript(t, calls...)
		if settled[0] != nil || settled[1] != nil || !errors.Is(settled[2], store.ErrFenced) {
			t.Errorf("the first outcome, the same again and another: %v", settled)
		}
	})
}

func TestServerThatRefusesWritesAnswersReplaysInTheSameScript(t *testing.T) {
	for what, setting := range map[string][3]string{
		"maxmemory":             {"maxmemory", "1", "0"},
		"min-replicas-to-write": {"min-replicas-to-write", "1", "0"},
	} {
		server := rig.NewRedis(t, rig.RedisOptions{})
		eachCrowded(t, server, func(t *testing.T, s crowded) {
			done, live := request("done"), mustClaim(t, s.Store, request("live"))
			mustSettle(t, s.Store, mustClaim(t, s.Store, done).Claim(), "x")
			done.Owner = store.NewOwner()
			config(t, server, setting[0], setting[1])
			defer config(t, server, setting[0], setting[2])
			refused := func(err error) {
				mustContain(t, err, what)
				mustContain(t, err, "nothing was done")
			}
			replay := func() {
				if rec, err := s.Claim(t.Context(), done); err != nil || string(rec.Result.Body) != "x" {
					t.Errorf("a replay: %+v, %v", rec, err)
				}
			}
			claim := func() { _, err := s.Claim(t.Context(), request("new")); refused(err) }
			s.inOneScript(t, replay, claim, func() { refused(s.Settle(t.Context(), live.Claim(), completed("y"), keep)) }, claim, replay)
			config(t, server, setting[0], setting[2])
			if rec := mustRead(t, s.Store, request("new").ID); rec.State != store.None {
				t.Errorf("what was refused is %v", rec.State)
			}
			if rec := mustRead(t, s.Store, live.ID); rec.State != store.Running {
				t.Errorf("what was not settled is %v", rec.State)
			}
		})
	}
}
