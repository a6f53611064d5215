package crashtest

import (
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/stet-go/stet/store"
)

// record is what a store should keep, as far as histories show it.
type record struct {
	state       string
	fingerprint string
	owner       string
	fence       int64 // 0: granted, but no reply had it
	above       int64 // the fence before this one
	attempt     int
	digest      string
}

var (
	none      = store.None.String()
	running   = store.Running.String()
	retryable = store.Retryable.String()
	unknown   = store.Unknown.String()
)

// checkTimeout bounds the check of one record.
const checkTimeout = 20 * time.Second

// linear judges that the calls on a record could have happened one after the
// other, each between its invocation and its end, on a store that does what the
// state machine says.
func (j *judge) linear(s *subject) {
	ops := s.operations()
	switch porcupine.CheckOperationsTimeout(recordModel, ops, checkTimeout) {
	case porcupine.Illegal:
		j.accuse(Linear, s, "%d calls fit no order; they are in the histories under %s", len(ops), s.id)
	case porcupine.Unknown:
		j.v.Undecided++
	}
}

// operations are the calls that say or change something. Of calls with the same
// arguments and an unknown end, one is kept, from the first invocation on: to
// repeat a claim, settle or release changes nothing, so whichever of them took
// effect first is all that there is.
func (s *subject) operations() (ops []porcupine.Operation) {
	type same struct{ verb, owner, state, digest string }
	unsure := make(map[same]bool)
	for i, c := range s.calls {
		switch {
		case c.out.Kind == Fail && c.out.Why == whyNothing:
			continue
		case c.in.Verb == verbTransact && c.out.Kind == Fail:
			continue // a mismatch, too: a running transaction has no record, but shows its request
		case c.out.Kind == OK && c.out.Fence == 0 && c.out.State == store.Running.String():
			continue // a transaction elsewhere
		case c.out.Kind == Unsure || c.out.Kind == "":
			if c.in.Verb == verbRead || c.in.Verb == verbExtend {
				continue
			}
			if c.in.Verb == verbTransact && !s.intend(&c) {
				continue // it never came to a commit
			}
			k := same{c.in.Verb, c.in.Owner, c.in.State, c.in.Digest}
			if unsure[k] {
				continue
			}
			unsure[k] = true
			c.out.Kind, c.to = Unsure, math.MaxInt64
		}
		ops = append(ops, porcupine.Operation{ClientId: i, Input: c.in, Output: c.out, Call: c.from, Return: c.to})
	}
	if s.looked != nil {
		l := *s.looked
		l.Kind = OK
		ops = append(ops, porcupine.Operation{ClientId: len(s.calls), Input: Event{Verb: verbRead}, Output: l, Call: l.At, Return: l.At})
	}
	return ops
}

// intend fills in what a transaction was about to commit, if it came so far.
func (s *subject) intend(c *call) bool {
	i := slices.IndexFunc(s.intents, func(ev Event) bool { return ev.Owner == c.in.Owner && ev.Process == c.in.Process })
	if i < 0 {
		return false
	}
	ev := s.intents[i]
	c.in.State, c.in.Digest, c.in.Fence, c.in.Attempt = ev.State, ev.Digest, ev.Fence, ev.Attempt
	return true
}

var recordModel = func() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{record{state: none}} },
		Step: func(state, input, output any) (next []any) {
			in, out := input.(Event), output.(Event)
			r := state.(record)
			// A lease may have run out and been noticed by anyone: see leases
			// for whether it had.
			nows := []record{r}
			if r.state == running {
				marked := r
				marked.state = unknown
				nows = append(nows, marked)
			}
			for _, now := range nows {
				for _, after := range now.step(in, out) {
					next = append(next, after)
				}
			}
			return next
		},
	}
	return m.ToModel()
}()

// step returns the records that a call leaves behind, none if it cannot have been
// answered like that.
func (r record) step(in, out Event) []record {
	switch in.Verb {
	case verbClaim:
		return r.claim(in, out)
	case verbTransact:
		return r.transact(in, out)
	case verbSettle, verbRelease:
		return r.write(in, out)
	case verbExtend:
		now, holds := r.under(in)
		if holds = holds && r.state == running; holds == (out.Kind == OK) {
			return []record{now}
		}
		return nil
	}
	return r.shown(out)
}

// shown returns the record if a store may show it as out.
func (r record) shown(out Event) []record {
	if r.state != out.State {
		return nil
	}
	if r.state == none {
		return []record{r}
	}
	if r.fence == 0 && out.Fence > r.above {
		r.fence = out.Fence
	}
	settled := r.state == store.Completed.String() || r.state == store.Failed.String()
	if r.fingerprint != out.Fingerprint || r.owner != out.Owner || r.fence != out.Fence || r.attempt != out.Attempt || settled && r.digest != out.Digest {
		return nil
	}
	return []record{r}
}

// granted returns the record of a new claim, whose fence is not known yet.
func (r record) granted(in Event) (record, bool) {
	free := r.state == none || r.state == retryable && r.owner != in.Owner && r.fingerprint == in.Fingerprint
	return record{state: running, fingerprint: in.Fingerprint, owner: in.Owner, above: max(r.fence, r.above), attempt: r.attempt + 1}, free
}

func (r record) claim(in, out Event) []record {
	other := r.state != none && r.fingerprint != in.Fingerprint
	if out.Kind == Fail {
		if other && out.Why == whyMismatch {
			return []record{r}
		}
		return nil
	}
	after, free := r.granted(in)
	if out.Kind == Unsure {
		if free {
			return []record{r, after}
		}
		return []record{r}
	}
	switch {
	case other:
		return nil
	case free:
		// A store may repeat a claim itself, whose reply was lost, and find it
		// marked unknown in the meantime.
		marked := after
		marked.state = unknown
		return append(after.shown(out), marked.shown(out)...)
	}
	return r.shown(out)
}

// transact is a claim that is settled at once.
func (r record) transact(in, out Event) []record {
	after, free := r.granted(in)
	if out.Kind == Unsure {
		after.state, after.digest, after.fence = in.State, in.Digest, in.Fence
		if free && after.fence > after.above {
			return []record{r, after}
		}
		return []record{r}
	}
	if out.Owner != in.Owner {
		return r.shown(out)
	}
	if !free || out.State == running {
		return nil
	}
	after.state, after.digest = out.State, out.Digest
	return after.shown(out)
}

// under reports whether the record has the fence of a write, and returns it with
// that fence.
func (r record) under(in Event) (record, bool) {
	if r.state == none {
		return r, false
	}
	if r.fence == 0 && r.owner == in.Owner && in.Fence > r.above {
		r.fence = in.Fence
	}
	return r, r.fence == in.Fence
}

// write is a settle or a release.
func (r record) write(in, out Event) []record {
	now, holds := r.under(in)
	to, digest := retryable, ""
	if in.Verb == verbSettle {
		to, digest = in.State, in.Digest
	}
	after := now
	after.state, after.digest = to, digest
	takes := holds && (r.state == running || r.state == unknown)
	again := holds && r.state == to && r.digest == digest
	switch {
	case out.Kind == Unsure && takes:
		return []record{r, after}
	case out.Kind == Unsure:
		return []record{r}
	case out.Kind == Fail:
		if takes || again {
			return nil
		}
		return []record{r}
	case takes:
		return []record{after}
	case again:
		return []record{now}
	}
	return nil
}
