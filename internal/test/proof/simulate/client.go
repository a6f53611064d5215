package simulate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// handler is what the handler of a client's operation does.
type handler uint8

const (
	succeeds handler = iota // has its effect, and returns
	fails                   // has its effect, and returns an error
	declines                // has no effect, and says so
)

// client asks for an operation once.
type client struct {
	n        int8 // of all clients
	role     role
	key      int8
	print    int8 // which of two requests it makes under the key
	handler  handler
	api      bool // calls Do rather than Begin and Settle, or DoTx rather than RunTx
	tx       bool // in a transaction
	patient  bool // waits for a run in flight
	obedient bool // its handler obeys its context
	leaves   bool // hangs up after a while
}

// apart keeps the timeouts of two clients from ending at the same time: if a client follows another,
// the first of the two ends is not the seed's decision.
func (c client) apart() time.Duration { return time.Duration(c.n) * time.Millisecond }

func (c client) String() string {
	if c.role != asks {
		return c.work()
	}
	s := fmt.Sprintf("a client asks for key %d", c.key)
	if c.tx {
		s += " in a transaction"
	}
	if c.print != 0 {
		s += ", for something else"
	}
	if c.patient {
		s += ", and waits"
	}
	if c.leaves {
		s += ", and hangs up after a while"
	}
	return s + [...]string{"", "; its handler fails", "; its handler declines"}[c.handler]
}

// told is an answer that a client got.
type told struct {
	client
	err  error // nil: completed
	kind stet.Kind
	text string // of an outcome
	exec stet.Execution
	ran  bool // its handler was called, in a transaction
	last bool // the client came when faults had ended

	status  *stet.Status // of an accepted operation; nil for other clients
	outcome bool         // text is that of its outcome

	came time.Duration // since the world began
	// meets is that a run of the key was going on in the same process when
	// the client came.
	meets bool
	// against is also that a transaction which asks for something else
	// was running.
	against bool
	process *process
}

func (t told) String() string {
	kind := "completed"
	switch {
	case t.kind != 0:
		kind = t.kind.String()
	case t.err != nil:
		kind = t.err.Error()
	}
	return fmt.Sprintf("client %d got: %s %q", t.n, kind, t.text)
}

var (
	errRefused = errors.New("simulate: the other side refuses this fence")
	errUnclear = errors.New("unclear")
)

// timedOut is the text of an outcome that Policy.Stale settles as failed.
var timedOut = stet.ErrRunTimeout.Error()

// ask is a client: it asks once and gets a reply, unless its process dies.
func (p *process) ask(t told) {
	w, c := p.w, t.client
	defer func() {
		r := recover()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.active--
		if r != nil {
			w.violate("panic", fmt.Sprint(r))
		}
		if !p.dead {
			w.told = append(w.told, t)
		}
	}()
	op := stet.Op{Scope: "scope", Key: keyNames[c.key], Fingerprint: fingerprints[c.print], Class: w.setup.class}
	if c.patient {
		op.Wait = wait + c.apart()
	}
	ctx := context.WithValue(context.Background(), clientOf{}, c.n)
	if c.leaves {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, leave+c.apart())
		defer cancel()
	}
	var err error
	switch {
	case c.role != asks:
		t.status = new(stet.Status)
		err = p.do(ctx, &t)
	case c.tx:
		err = p.transact(ctx, op, &t)
	case c.api:
		var res stet.Result[string]
		res, err = stet.Do(ctx, p.engine, op, func(ctx context.Context) (string, error) {
			return p.handle(ctx, stet.FromContext(ctx), c)
		})
		t.text = res.Value
	default:
		t.text, err = p.begin(ctx, op, c)
	}
	t.exec = stet.Executed
	if err == nil {
		return
	}
	t.exec, t.kind, t.err = stet.ExecutionOf(err), stet.KindOf(err), err
	if e, ok := errors.AsType[*stet.Error](err); ok && e.Kind == stet.KindFailed {
		t.text = e.Cause.Error()
	}
}

// begin does by hand what Do does.
func (p *process) begin(ctx context.Context, op stet.Op, c client) (string, error) {
	run, err := p.engine.Begin(ctx, op)
	if err != nil {
		return "", err
	}
	if run.Replayed() {
		return said(run.Outcome())
	}
	text, err := p.handle(run.Context(), run.Run, c)
	if run.Declared() == stet.NotExecuted {
		return "", errors.Join(&stet.Error{Kind: stet.KindRetryable, Execution: stet.NotExecuted}, run.Release(ctx, stet.Again{}))
	}
	out := stet.Outcome{Body: strconv.AppendQuote(nil, text)}
	if err != nil {
		out = stet.Outcome{Failed: true, Body: []byte(err.Error())}
	}
	if err := run.Settle(ctx, out); err != nil {
		return "", err
	}
	return said(out)
}

// said is what a client makes of an outcome.
func said(out stet.Outcome) (string, error) {
	text := strings.Trim(string(out.Body), `"`)
	switch {
	case !out.Failed:
		return text, nil
	case out.Reason == store.ReasonCancelled:
		text = stet.ErrCancelled.Error()
	case text == "":
		text = timedOut
	}
	return "", &stet.Error{Kind: stet.KindFailed, Execution: stet.Executed, Cause: errors.New(text)}
}

// handle is the handler.
func (p *process) handle(ctx context.Context, run *stet.Run, c client) (string, error) {
	p.handling(c.key, 1)
	defer p.handling(c.key, -1)
	if c.handler == declines || c.obedient && ctx.Err() != nil {
		run.Declare(stet.NotExecuted, 0)
		return "", nil
	}
	if !c.obedient {
		ctx = context.WithoutCancel(ctx)
	}
	var text string
	e := &call{p: p, kind: effect, key: c.key, fence: run.Fence()}
	e.do = func() (err error) {
		text, err = p.w.effect(e)
		return err
	}
	switch err := e.await(ctx); {
	case errors.Is(err, errRefused), errors.Is(err, errDead):
		run.Declare(stet.NotExecuted, 0)
		return "", nil
	case err != nil: // it may have had its effect, or have it yet
		return "", errUnclear
	}
	if c.handler == fails {
		return "", errors.New(text)
	}
	return text, nil
}

func (p *process) handling(key int8, change int) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.runs[key] += change
}

// made is an effect that the world has seen.
type made struct {
	fence  int64
	client int8
	text   string
	failed bool // its handler returns an error
}

// ledger is the other side of one key: where the effects are.
type ledger struct {
	made    []made
	refused []int64 // fences that a verifier has ruled out
}

// effect carries out the effect of a run.
func (w *world) effect(c *call) (string, error) {
	l := &w.ledgers[c.key]
	for _, fence := range l.refused {
		if fence == c.fence {
			return "", errRefused
		}
	}
	text := keyNames[c.key] + "." + strconv.Itoa(len(l.made)+1)
	l.made = append(l.made, made{fence: c.fence, client: c.client, text: text, failed: w.clients[c.client].handler == fails})
	w.count.Effects++
	return text, nil
}

// verify is the verifier of the class "verify": it asks the other side, which
// refuses from then on every run that it has not seen.
func (p *process) verify(ctx context.Context, st stet.Status) (v stet.Resolution, err error) {
	key := int8(strings.Index(keyLetters, st.Op.Key))
	c := &call{p: p, kind: verify, key: key, fence: st.Record.Fence}
	c.do = func() error {
		l := &p.w.ledgers[key]
		for _, m := range l.made {
			if m.fence != st.Record.Fence {
				continue
			}
			out := stet.Outcome{Body: strconv.AppendQuote(nil, m.text)}
			if m.failed {
				out = stet.Outcome{Failed: true, Body: []byte(m.text)}
			}
			v = stet.ItHappened(out)
			return nil
		}
		l.refused = append(l.refused, st.Record.Fence)
		v = stet.ItDidNotHappen()
		return nil
	}
	if err := c.await(ctx); err != nil {
		return stet.CannotKnow(), err
	}
	return v, nil
}
