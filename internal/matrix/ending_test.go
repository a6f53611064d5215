package matrix

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

const endingsHead = `# How a run ends. One line a cell; see the package's comment.
#
# mode and adapter, how the run ends, the record fifteen seconds after the first answer
# (a store that was down is back, and no lease has run out), the first caller's
# answer, the next retry's three minutes later; how often the handler ran in all, and
# how often it had its effect. Of a worker the first answer is what Worker.Do
# returns, and a client's reply then; the next is the client's reply after Worker.Run
# has run for ten minutes. A second run returns "two".
#
`

// ending is a way in which a run ends.
type ending struct {
	name     string
	status   int   // over HTTP; 0 is 200
	harmless bool  // it has no effect
	fault    fault // of the store from the end of the handler on
	run      func(context.Context, *world) (string, error)
}

var (
	errBoom = errors.New("boom")
	errBusy = stet.Retryable(errors.New("busy"))
	// errTheirs is of another operation, which the handler has called.
	errTheirs = &stet.Error{Kind: stet.KindRetryable, Execution: stet.NotExecuted}
)

// returns is a run that says something, and then returns.
func returns(value string, err error, says ...func(*stet.Run)) func(context.Context, *world) (string, error) {
	return func(ctx context.Context, _ *world) (string, error) {
		for _, say := range says {
			say(stet.FromContext(ctx))
		}
		return value, err
	}
}

// permanent is a run that returns an error that is stet.Permanent.
func permanent(err error, says ...func(*stet.Run)) func(context.Context, *world) (string, error) {
	return func(ctx context.Context, w *world) (string, error) {
		return returns("", stet.Permanent(err), says...)(ctx, w)
	}
}

func nothing(r *stet.Run) { r.Declare(stet.NotExecuted, 0) }
func unknown(r *stet.Run) { r.Declare(stet.MayHaveExecuted, 0) }
func panics(*stet.Run)    { panic("oops") }
func exits(*stet.Run)     { runtime.Goexit() }

// endings by name. What an adapter does not have is left out, see has.
var endings = []ending{
	{name: "value", run: returns("one", nil)},
	{name: "error", status: 500, run: returns("", errBoom)},
	{name: "error of another operation", status: 500, run: returns("", errTheirs)},
	{name: "retryable", status: 429, harmless: true, run: returns("", errBusy)},
	{name: "repeatable", run: returns("", errRepeatable)},
	{name: "permanent", run: permanent(errBoom)},
	{name: "permanent, retryable", harmless: true, run: permanent(errBusy)},
	{name: "permanent, declared not executed", harmless: true, run: permanent(errBoom, nothing)},
	{name: "permanent, declared unknown", run: permanent(errBoom, unknown)},
	{name: "declared not executed, value", harmless: true, run: returns("one", nil, nothing)},
	{name: "declared not executed, error", status: 500, harmless: true, run: returns("", errBoom, nothing)},
	{name: "declared not executed, panic", harmless: true, run: returns("", nil, nothing, panics)},
	{name: "declared not executed, goexit", harmless: true, run: returns("", nil, nothing, exits)},
	{name: "declared unknown, value", run: returns("one", nil, unknown)},
	{name: "declared unknown, error", status: 500, run: returns("", errBoom, unknown)},
	{name: "declared unknown, retryable", status: 429, run: returns("", errBusy, unknown)},
	{name: "declared unknown, repeatable", run: returns("", errRepeatable, unknown)},
	{name: "declared unknown, not executed", run: returns("one", nil, unknown, nothing)},
	{name: "declared unknown, panic", run: returns("", nil, unknown, panics)},
	{name: "panic", run: returns("", nil, panics)},
	{name: "goexit", run: returns("", nil, exits)},
	{name: "timed out, error", status: 500, run: timedOut},
	{name: "timed out, value", run: regardless(timedOut)},
	{name: "lease lost, error", status: 500, run: leaseLost},
	{name: "lease lost, value", run: regardless(leaseLost)},
	{name: "lease lost, panic", run: func(ctx context.Context, w *world) (string, error) { _, _ = leaseLost(ctx, w); panic("oops") }},
	{name: "resolved during the run, value", run: regardless(resolved)},
	{name: "settle unreachable", fault: down, run: returns("one", nil)},
	{name: "settle unanswered", fault: unanswered, run: returns("one", nil)},
	{name: "COMMIT unanswered, not done", fault: undone, run: returns("one", nil)},
	{name: "error, settle unreachable", status: 500, fault: down, run: returns("", errBoom)},
	{name: "retryable, release unreachable", status: 429, harmless: true, fault: down, run: returns("", errBusy)},
	{name: "declared unknown, store unreachable", fault: down, run: returns("one", nil, unknown)},
	{name: "step continues, value", run: func(ctx context.Context, _ *world) (string, error) {
		go func() {
			_, _ = stet.StepOnce(ctx, "charge", func(context.Context) (string, error) { time.Sleep(time.Minute); return "", nil })
		}()
		time.Sleep(time.Second)
		return "one", nil
	}},
	{name: "shut down, error", run: shutDown},
	{name: "shut down, value", run: regardless(shutDown)},
	{name: "cancelled, error", run: cancelled},
	{name: "cancelled, value", run: regardless(cancelled)},
	{name: "open step, error", status: 500, run: openStep},
	{name: "open step, value", run: regardless(openStep)},
	{name: "open step, retryable", status: 429, run: openStepThen(errBusy)},
	{name: "open step, declared not executed", run: openStepThen(nil, nothing)},
	{name: "open step, permanent", run: func(ctx context.Context, w *world) (string, error) {
		_, _ = openStep(ctx, w)
		return "", stet.Permanent(errBoom)
	}},
}

func regardless(run func(context.Context, *world) (string, error)) func(context.Context, *world) (string, error) {
	return func(ctx context.Context, w *world) (string, error) {
		_, _ = run(ctx, w)
		return "one", nil
	}
}

func timedOut(ctx context.Context, _ *world) (string, error) {
	<-ctx.Done()
	return "", context.Cause(ctx)
}

// leaseLost has the run's record marked unknown under it, as after a long pause.
func leaseLost(ctx context.Context, w *world) (string, error) {
	if _, err := w.store.Store.Extend(context.Background(), []store.Claim{w.record().Claim()}, time.Nanosecond); err != nil {
		return "", err
	}
	time.Sleep(time.Millisecond)
	_ = must(w.store.Sweep(context.Background(), 100))
	return timedOut(ctx, w)
}

// resolved has an operator decide about a run that continues.
func resolved(ctx context.Context, w *world) (string, error) {
	_, err := leaseLost(ctx, w)
	rec := w.record()
	fails := w.engine.Resolve(context.Background(), rec, "", stet.ItHappened(stet.Outcome{Failed: true, Gone: true}))
	if waits := rec.State == store.Accepted; waits != (stet.KindOf(fails) == stet.KindFenced) || !waits && fails != nil { // what may be repeated waits for that
		w.t.Error(fails)
	}
	return "", err
}

// shutDown has the worker end the handler's context.
func shutDown(ctx context.Context, w *world) (string, error) {
	go func() { _ = w.current.Shutdown(stopped()) }()
	return timedOut(ctx, w)
}

// stopped is a context that has ended: nothing is waited for.
func stopped() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func cancelled(ctx context.Context, w *world) (string, error) {
	cancel(w)
	return timedOut(ctx, w)
}

func openStep(ctx context.Context, _ *world) (string, error) {
	return stet.StepOnce(ctx, "charge", func(context.Context) (string, error) { return "", errBoom })
}

func openStepThen(err error, says ...func(*stet.Run)) func(context.Context, *world) (string, error) {
	return func(ctx context.Context, w *world) (string, error) {
		_, _ = openStep(ctx, w)
		return returns("one", err, says...)(ctx, w)
	}
}

// adapters by mode and name; of a worker's, how its handler is registered.
var adapters = []string{"lease http", "lease http flushed", "lease do", "lease message", "lease webhook",
	"tx http", "tx http flushed", "tx do", "tx message", "tx webhook",
	"accepted plain", "accepted idempotent", "accepted tx"}

// has reports whether an adapter has an ending.
func has(adapter string, e ending) bool {
	mode, name, _ := strings.Cut(adapter, " ")
	worker, message, web := mode == "accepted", name == "message", strings.HasPrefix(name, "http")
	tx := mode == "tx" || name == "tx"
	switch {
	case strings.Contains(e.name, "repeatable"):
		return message && !tx
	case strings.Contains(e.name, "permanent"):
		return (message || worker || name == "do") && (mode != "tx" || !takesStep(e))
	case e.name == "COMMIT unanswered, not done":
		return tx
	case takesStep(e), strings.HasPrefix(e.name, "lease"), strings.HasPrefix(e.name, "resolved"):
		return mode != "tx" // it has no lease, and takes no steps
	case strings.HasPrefix(e.name, "shut down"), strings.HasPrefix(e.name, "cancelled"):
		return worker
	case e.name == "error of another operation":
		return !web
	default:
		return true
	}
}

// TestEveryEnding compares how runs end, by adapter, with testdata/endings.txt.
func TestEveryEnding(t *testing.T) {
	var rows [][]string
	for _, adapter := range adapters {
		for _, e := range endings {
			if has(adapter, e) {
				synctest.Test(t, func(t *testing.T) { rows = append(rows, end(t, adapter, e)) })
			}
		}
	}
	golden(t, "endings.txt", endingsHead, []int{19, 36, 12, 48, 48, 0}, rows)
}

// end produces a cell.
func end(t *testing.T, adapter string, e ending) []string {
	w := newWorld(t, nil, stet.Options{})
	first, next := w.ask(adapter)
	w.harmless, w.status, w.flush = e.harmless, max(e.status, http.StatusOK), strings.HasSuffix(adapter, "flushed")
	w.handle = func(ctx context.Context) (string, error) {
		if w.runs > 1 {
			return "two", nil
		}
		w.harmless, w.status = false, http.StatusOK // from now on
		defer w.store.arm(e.fault)
		return e.run(ctx, w)
	}
	row := []string{adapter, e.name, "", first()}
	time.Sleep(15 * time.Second) // the store is back, and no lease has run out
	rec := w.record()
	row[2] = rec.State.String()
	if rec.Gone {
		row[2] += ", gone"
	}
	time.Sleep(3 * time.Minute)
	return append(row, next(), fmt.Sprintf("ran %d, effects %d", w.runs, w.effects))
}

// ask returns how an adapter asks for the operation first, and how again.
func (w *world) ask(adapter string) (first, next func() string) {
	mode, name, _ := strings.Cut(adapter, " ")
	inTx := mode == "tx"
	if mode == "accepted" {
		return w.accepted(name)
	}
	deliveries := 0
	first = map[string]func() string{
		"http": func() string { return w.http(inTx) }, "http flushed": func() string { return w.http(inTx) },
		"do": func() string { return w.do(inTx) }, "webhook": func() string { return w.hook(inTx) },
		"message": func() string { deliveries++; return w.message(inTx, deliveries) },
	}[name]
	return first, first
}

// accepted is ask for an operation that is accepted, and run by a worker.
func (w *world) accepted(kind string) (first, next func() string) {
	w.current = w.worker(kind)
	first = func() string {
		if got := w.async("POST"); !strings.HasPrefix(got, "202 ") {
			w.t.Errorf("it was not accepted: %s", got)
		}
		return short(w.work(w.current) + "; " + w.async("POST"))
	}
	return first, func() string {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		if err := w.worker(kind).Run(ctx); err != nil {
			w.t.Error(err)
		}
		return short(w.async("POST"))
	}
}

// short leaves out what a 202 says.
func short(answer string) string {
	fields := strings.Fields(answer)
	return strings.Join(slices.DeleteFunc(fields, func(s string) bool { return strings.HasPrefix(s, "{") }), " ")
}

// takesStep reports whether the ending is about a step.
func takesStep(e ending) bool {
	return strings.HasPrefix(e.name, "step") || strings.HasPrefix(e.name, "open step")
}
