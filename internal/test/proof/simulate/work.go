package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// role is what a client does.
type role uint8

const (
	asks     role = iota // for an operation, and waits for its end: the other kinds
	accepts              // has an operation accepted, and may wait for its outcome
	works                // takes an operation and runs it
	relays               // sends messages
	cancels              // asks for a cancellation
	resolves             // decides on an expired run, as an operator or a reconciler does
	looks                // asks for the status
	spies                // does so, and cancels, under another scope
)

const (
	maxWorkClients = 14
	workSteps      = 20 // at least
	moreWorkSteps  = 60

	// Times until operations are due again end at a quantum, as all others do.
	dueAgain = 2 * quantum
	later    = 2 * quantum // of delayed work, and of released operations
)

// part is something that may be in the program of an operation.
type part uint8

const (
	outside   part = iota // an effect outside of any step
	repeated              // one in a step that may be repeated
	once                  // one in a step that may not
	inStep                // one in the transaction of a step
	finishing             // one in the transaction with the outcome
	ordering              // one in the transaction that accepts; not of the program
	emits                 // two messages
	tells                 // progress
	parts
)

var partNames = [parts]string{"outside", "repeated", "once", "step", "finish", "order", "emit", "progress"}

// program is what the runs of all operations do: a set of parts.
type program uint16

func (p program) has(x part) bool { return p&(1<<x) != 0 }

func (p program) String() string {
	var names []string
	for x := range parts {
		if p.has(x) {
			names = append(names, partNames[x])
		}
	}
	return strings.Join(names, ", ")
}

// office is what the world knows of accepted operations.
type office struct {
	made     [maxKeys][parts][]made // effects, but for those outside, which are in the ledgers
	ruledOut [maxKeys]int64         // fences up to this one are refused by the other side
	asked    [maxKeys]int           // how often a verifier was asked
	accepted [maxKeys]time.Duration // since the world began; of the first time
	unbegun  [maxKeys]bool          // cancelled before anybody took it
	steps    [maxKeys]map[string]string
	sent     [maxKeys]map[string]string // messages: their text, by ID
}

// beginWork draws a client.
func (g *generator) beginWork(w *world) step {
	c := client{key: int8(g.rng.IntN(w.setup.keys)), api: g.rng.IntN(3) == 0, patient: g.rng.IntN(3) == 0, obedient: g.rng.IntN(3) == 0, leaves: g.rng.IntN(4) == 0}
	switch x := g.rng.IntN(100); {
	case w.begun == 0 || x < 22:
		c.role, c.tx = accepts, g.rng.IntN(4) == 0
		if g.rng.IntN(6) == 0 {
			c.print = 1
		}
	case x < 66:
		c.role = works
	case x < 78:
		c.role = relays
	case x < 86:
		c.role = cancels
	case x < 94:
		c.role = resolves
	case x < 97:
		c.role = looks
	default:
		c.role = spies
	}
	switch g.rng.IntN(6) {
	case 0:
		c.handler = declines
	case 1:
		c.handler = fails
	}
	return step{act: begin, proc: g.process(w), client: c}
}

func (c client) work() string {
	s := fmt.Sprintf("a client %s key %d", [...]string{"asks for", "has accepted", "works on", "relays", "cancels", "resolves", "looks at", "spies on"}[c.role], c.key)
	for _, how := range []struct {
		is   bool
		text string
	}{{c.api, "directly"}, {c.tx, "in a transaction"}, {c.print != 0, "for something else"}, {c.patient, "patient"}, {c.obedient, "obedient"},
		{c.leaves, "leaving"}, {c.handler == fails, "its handler fails"}, {c.handler == declines, "its handler declines"}} {
		if how.is {
			s += ", " + how.text
		}
	}
	return s
}

var (
	errReturned = errors.New("simulate: returned")
	errMarked   = errors.New("simulate: marked unknown")
	errNothing  = errors.New("simulate: nothing to do")
)

// do is what a client of accepted operations does.
func (p *process) do(ctx context.Context, t *told) (err error) {
	id := ids[t.key]
	switch t.role {
	case accepts:
		err = p.accept(ctx, t)
	case works:
		err = p.work(ctx, t)
	case relays:
		err = p.relay(ctx)
	case cancels:
		*t.status, err = p.engine.Cancel(ctx, "scope", id)
	case resolves:
		err = p.resolve(ctx, *t)
	case looks:
		*t.status, err = p.engine.Status(ctx, "scope", id)
	case spies:
		if t.api {
			*t.status, err = p.engine.Cancel(ctx, "another", id)
		} else {
			*t.status, err = p.engine.Status(ctx, "another", id)
		}
	}
	return err
}

// accept has an operation accepted.
func (p *process) accept(ctx context.Context, t *told) (err error) {
	op := stet.Op{Scope: "scope", Key: keyNames[t.key], Fingerprint: fingerprints[t.print], Class: p.w.setup.class}
	work := stet.Work{Name: "work", Payload: payload(t.key, t.print)}
	if t.leaves {
		work.After = later
	}
	if t.tx {
		d := workStore{p}
		err = d.InTx(ctx, func(ctx context.Context, tx *workTx) (err error) {
			*t.status, err = d.inTx().Accept(ctx, tx, op, work)
			if t.status.New {
				tx.wrote = append(tx.wrote, wrote{ordering, made{client: t.n}})
			}
			return err
		})
		p.engine.Wake()
	} else {
		*t.status, err = p.engine.Accept(ctx, op, work)
	}
	if err != nil || !t.patient {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	*t.status, err = p.engine.Await(ctx, "scope", ids[t.key])
	return err
}

func payload(key, print int8) []byte {
	return []byte(keyNames[key] + strconv.Itoa(int(print)))
}

// relay sends messages.
func (p *process) relay(ctx context.Context) error {
	_, err := p.engine.Relay(ctx, maxKeys, dueAgain, func(operations [][]stet.Message, told func(int, error)) error {
		for i, messages := range operations {
			for _, m := range messages {
				c := &call{p: p, kind: publish, key: int8(strings.Index(keyLetters, m.Key))}
				c.do = func() error {
					p.w.publish(c, m)
					return nil
				}
				if err := c.await(ctx); err != nil {
					return err // sent again
				}
			}
			told(i, nil)
		}
		return nil
	})
	return err
}

// publish is the broker, which judges each message.
func (w *world) publish(c *call, m stet.Message) {
	w.count.Published++
	o, rec := w.office, w.look(int(c.key)).rec
	if o.sent[c.key] == nil {
		o.sent[c.key] = make(map[string]string)
	}
	by, _, _ := strings.Cut(string(m.Body), "#")
	if fence, _, ok := settledBy(rec); !ok || strconv.FormatInt(fence, 10) != by {
		w.violate("a message of a run that did not settle", fmt.Sprintf("%q, while the record is %v, %q", m.Body, rec.State, stands(rec)))
	}
	if was, ok := o.sent[c.key][m.ID]; ok && was != string(m.Body) {
		w.violate("a message's ID was used twice", fmt.Sprintf("%q, and before %q", m.Body, was))
	}
	o.sent[c.key][m.ID] = string(m.Body)
}

// resolve finds an expired run, asks the other side about it, and decides; unless it
// cannot know.
func (p *process) resolve(ctx context.Context, t told) error {
	st, err := p.engine.Lookup(ctx, ids[t.key])
	if err != nil {
		return err
	}
	if st.Record.State != store.Unknown && (st.Record.State != store.Running || st.Record.LeaseLeft > 0) || t.handler == declines {
		return errNothing
	}
	v, err := p.judgeRun(ctx, t.key, st.Record.Fence)
	if err != nil {
		return err
	}
	return p.engine.Resolve(ctx, st.Record, p.w.setup.class, v)
}

// judgeRun asks the other side about the runs of a key up to a fence, which it
// refuses from then on, and finds out whether a step is unknown.
func (p *process) judgeRun(ctx context.Context, key int8, fence int64) (stet.Resolution, error) {
	w, o := p.w, p.w.office
	happened, begun := false, false
	c := &call{p: p, kind: verify, key: key, fence: fence}
	c.do = func() error {
		o.ruledOut[key] = max(o.ruledOut[key], fence)
		o.asked[key]++
		happened, begun = len(w.ledgers[key].made) > 0, len(o.made[key][once]) > 0
		return nil
	}
	if err := c.await(ctx); err != nil {
		return stet.CannotKnow(), err
	}
	if begun && !happened { // and if it is known to have ended, only later runs are in question
		st, err := p.engine.Lookup(ctx, ids[key])
		if err != nil {
			return stet.CannotKnow(), err
		}
		happened = st.OpenStep != ""
	}
	if happened {
		return stet.ItHappened(stet.Outcome{Body: strconv.AppendQuote(nil, keyNames[key]+"@0+0")}), nil
	}
	return stet.ItDidNotHappen(), nil
}

// verifyWork is the verifier of the class "verify", which does not know at first.
func (p *process) verifyWork(ctx context.Context, st stet.Status) (stet.Resolution, error) {
	key := int8(strings.Index(keyLetters, st.Op.Key))
	if p.w.setup.unsure && p.asked(key) {
		return stet.CannotKnow(), nil
	}
	return p.judgeRun(ctx, key, st.Record.Fence)
}

// asked counts a question about a key, and reports whether it is the first.
func (p *process) asked(key int8) bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.dead {
		return true
	}
	p.w.office.asked[key]++
	return p.w.office.asked[key] == 1
}

// stepped judges the result of a step: it is the same in every attempt.
func (p *process) stepped(key int8, name, result string) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.dead {
		return
	}
	steps := &p.w.office.steps[key]
	if *steps == nil {
		*steps = make(map[string]string)
	}
	if was, ok := (*steps)[name]; !ok {
		(*steps)[name] = result
	} else if p.w.count.Recalled++; was != result {
		p.w.violate("the result of a step changed", fmt.Sprintf("%q of key %d was %q, and is %q", name, key, was, result))
	}
}

// settledBy reads from an outcome which run has settled the record, and how many
// messages it has emitted; false if none has.
func settledBy(rec store.Record) (fence int64, messages int, ok bool) {
	if !rec.State.Settled() {
		return 0, 0, false
	}
	_, text, ok := strings.Cut(stands(rec), "@")
	by, n, _ := strings.Cut(text, "+")
	fence, _ = strconv.ParseInt(by, 10, 64)
	messages, _ = strconv.Atoi(n)
	return fence, messages, ok && fence > 0
}

// hasBy reports whether the run of a fence made one of the effects.
func hasBy(all []made, fence int64) bool {
	return slices.ContainsFunc(all, func(m made) bool { return m.fence == fence })
}

// verifier is that of the process.
func (p *process) verifier() func(context.Context, stet.Status) (stet.Resolution, error) {
	if p.w.setup.work {
		return p.verifyWork
	}
	return p.verify
}
