package storetest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

// ended is ctx, ended.
func ended(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

var cancelChecks = []check{
	{"a cancellation in each state follows the state machine", "waiting work ends, a running operation is asked to end, and an ended one stays.",
		cancelInEachState},
	{"a cancelled operation has an outcome like any other", "retries get the cancellation for the whole retention.",
		cancelledIsSettled},
	{"of a cancellation and a take exactly one comes through", "after a cancellation, the caller relies on it that nothing runs.",
		raceToCancel},
}

func cancelInEachState(f *fixture) {
	out := failed("result")
	for _, s := range f.situations() {
		rec, err := f.can.works.Cancel(f.ctx, s.claim, out, f.keep)
		what := "Cancel of a key that is " + s.name
		now := f.look(s.req.ID)
		switch {
		case s.state == store.Accepted:
			if err != nil || now.State != store.Failed || now.Fence != s.claim.Fence || now.Attempt != s.rec.Attempt || text(now.Result) != "result" {
				f.Errorf("%s: %v; it is %s", what, err, show(now))
			}
			if now.Work != nil || now.Notes.Version != 0 {
				f.Errorf("%s left the work %s and the notes %s", what, brief(now.Work), noted(now.Notes))
			}
		case s.state == store.Running && s.work:
			want := s.whole
			want.Cancelling = true
			if d := workDiff(want, now); err != nil || d != "" {
				f.Errorf("%s: %v; %s", what, err, d)
			}
		case s.sameOutcome(out):
			if err != nil {
				f.Errorf("%s is a repetition and should succeed: %v", what, err)
			}
			f.untouched(what, s.whole)
		default:
			f.fenced(what, err)
			f.untouched(what, s.whole)
			continue
		}
		if d := diff(now, rec); d != "" || rec.Cancelling != now.Cancelling {
			f.Errorf("%s returned another record than there is: %s", what, d)
		}
	}
	f.isDue("once all was cancelled")
}

func cancelledIsSettled(f *fixture) {
	req, brief := f.request(f.long), f.request(f.long)
	c := f.accepts(req, 0).Claim()
	if _, err := f.can.works.Cancel(f.ctx, f.accepts(brief, 0).Claim(), failed("x"), store.Retention{Result: f.unit / 2, Tombstone: f.unit}); err != nil {
		f.Fatalf("Cancel: %v", err)
	}
	for range 2 { // the reply to the first time may have been lost
		f.cancel(c, failed("cancelled"))
	}
	rec := f.read(req.ID)
	if got := rec.ExpiresAt.Sub(rec.SettledAt); !near(got, f.keep.Result) {
		f.Errorf("the result expires %v after it was cancelled; want %v", got, f.keep.Result)
	}
	if got := rec.ForgetAt.Sub(rec.SettledAt); !near(got, f.keep.Tombstone) {
		f.Errorf("the record is forgotten %v after it was cancelled; want %v", got, f.keep.Tombstone)
	}
	for by, got := range map[string]store.Record{"a take": f.take(req.ID, store.NewOwner(), f.long), "a claim": f.claim(byAnother(req)), "an acceptance": f.accept(byAnother(req), 0)} {
		if got.State != store.Failed || text(got.Result) != "cancelled" || got.Fence != c.Fence {
			f.Errorf("%s of a cancelled operation returned %s", by, show(got))
		}
	}
	_, err := f.can.works.Cancel(f.ctx, c, failed("for another reason"), f.keep)
	f.fenced("Cancel with another outcome", err)
	f.unchanged("all that", rec)
	f.pass(1)
	f.isDue("cancelled")
	if now := f.look(brief.ID); now.State != store.None {
		f.Errorf("past its ForgetAt, a cancelled operation is %s", show(now))
	}
}

func raceToCancel(f *fixture) {
	for range 20 {
		req := f.request(f.long)
		c := f.accepts(req, 0).Claim()
		worker := byAnother(req)
		var took store.Record
		var takeErr, cancelErr error
		race(2, func(i int) {
			if i == 0 {
				took, takeErr = f.can.works.Take(f.ctx, store.TakeRequest{ID: req.ID, Owner: worker.Owner, Lease: f.long})
			} else {
				_, cancelErr = f.can.works.Cancel(f.ctx, c, failed("cancelled"), f.keep)
			}
		})
		if takeErr != nil || cancelErr != nil && !errors.Is(cancelErr, store.ErrFenced) {
			f.Fatalf("a cancellation and a take: %v, %v", cancelErr, takeErr)
		}
		if granted(took, worker) == (cancelErr == nil) {
			f.Errorf("Cancel returned %v, and the take beside it %s; the record is %s", cancelErr, show(took), show(f.read(req.ID)))
		}
	}
}

var noteChecks = []check{
	{"notes are saved in each state that the contract names", "only the run itself stores its checkpoints.",
		saveInEachState},
	{"Amend changes the notes of unknown records only", "a verifier found that a step did not happen; a running record belongs to its run, and an ended one stays.",
		amendInEachState},
	{"an amended step stays so for the next attempt, and its own run cannot undo it", "a step that did not happen is to run again, once.",
		amendStands},
	{"notes are only replaced by a greater version", "a write that was delayed on its way must not undo a later one: a step would run twice.",
		notesGrow},
	{"notes outlive the run, and end with the outcome", "the next attempt continues after the completed steps.",
		notesOutliveTheRun},
	{"work and notes come back byte for byte", "the worker runs exactly the accepted work.",
		workIsExact},
}

// noted has write write notes to a situation's record, which it may only in that
// state, and returns the notes that must be stored then; false in other states.
func (f *fixture) noted(what string, s situation, in store.State, write func(context.Context, store.Claim, store.Notes) error) (want store.Record, ok bool) {
	f.Helper()
	notes := version(2, "noted by "+s.name)
	err := write(f.ctx, s.claim, notes)
	if s.state != in {
		f.fenced(what, err)
		f.untouched(what, s.whole)
		return want, false
	}
	want = s.whole
	want.Notes = notes
	if d := workDiff(want, f.look(s.req.ID)); err != nil || d != "" {
		f.Errorf("%s: %v; %s", what, err, d)
	}
	return want, true
}

func saveInEachState(f *fixture) {
	for _, s := range f.situations() {
		what := "Save for a key that is " + s.name
		if _, ok := f.noted(what, s, store.Running, f.saveOnce); !ok {
			continue
		}
		f.bare("Read after "+what, f.read(s.req.ID))
		f.bare("Claim after "+what, f.claim(byAnother(s.req)))
	}
}

func amendInEachState(f *fixture) {
	for _, s := range f.situations() {
		what := "Amend for a key that is " + s.name
		want, ok := f.noted(what, s, store.Unknown, f.can.works.Amend)
		if !ok {
			continue
		}
		f.fenced("Save after "+what, f.saveOnce(f.ctx, s.claim, version(9, "late")))
		if err := f.can.works.Amend(f.ctx, s.claim, version(2, "again")); err != nil {
			f.Errorf("%s, repeated because the reply was lost: %v", what, err)
		}
		f.fenced("Amend of a lesser version", f.can.works.Amend(f.ctx, s.claim, version(1, "delayed")))
		f.untouched("all that", want)
		stale := s.claim
		stale.Fence--
		f.fenced("Amend with another fence", f.can.works.Amend(f.ctx, stale, version(9, "stale")))
		f.untouched("all that", want)
		f.bare("Read after "+what, f.read(s.req.ID))
	}
}

func amendStands(f *fixture) {
	req, rec := f.taken(f.unit)
	f.save(rec.Claim(), version(1, "begun"))
	f.pass(1)
	if now := f.take(req.ID, store.NewOwner(), f.unit); now.State != store.Unknown || !sameNotes(now.Notes, version(1, "begun")) {
		f.Errorf("Take marked it unknown, and returned %s with the notes %s", show(now), noted(now.Notes))
	}
	if err := f.can.works.Amend(f.ctx, rec.Claim(), version(2, "amended")); err != nil {
		f.Errorf("Amend: %v", err)
	}
	f.fenced("Save by its own run", f.saveOnce(f.ctx, rec.Claim(), version(9, "done after all")))
	f.release(rec.Claim(), f.keep)
	f.fenced("Amend of a released record", f.can.works.Amend(f.ctx, rec.Claim(), version(3, "late")))
	next := f.takes(byAnother(req))
	if !sameNotes(next.Notes, version(2, "amended")) {
		f.Errorf("the next attempt got the notes %s", noted(next.Notes))
	}
	for what, write := range map[string]func(context.Context, store.Claim, store.Notes) error{"Save": f.saveOnce, "Amend": f.can.works.Amend} {
		f.fenced(what+" under the fence before", write(f.ctx, rec.Claim(), version(9, "zombie")))
	}
	f.save(next.Claim(), version(3, "by the next attempt"))
}

func notesGrow(f *fixture) {
	_, rec := f.taken(f.long)
	for _, step := range []struct {
		name        string
		notes       store.Notes
		kept, fails bool
	}{
		{"the first", version(1, "noted"), true, false},
		{"a greater version, without data", store.Notes{Version: 9}, true, false},
		{"the same version", version(9, "noted"), false, false},
		{"a lesser version", version(8, "noted"), false, true},
		{"a greater version of more than a byte", version(256, "noted"), true, false},
		{"a lesser one with a greater last byte", version(255, "noted"), false, true},
		{"a version that would be negative in a signed number", version(1<<63, "noted"), true, false},
		{"a lesser one, which would not be", version(1<<63-1, "noted"), false, true},
		{"the greatest version", version(math.MaxUint64, "noted"), true, false},
	} {
		was := f.look(rec.ID).Notes
		err := f.saveOnce(f.ctx, rec.Claim(), step.notes)
		if step.fails {
			f.fenced("Save of "+step.name, err)
		} else if err != nil {
			f.Errorf("Save of %s: %v", step.name, err)
		}
		want := was
		if step.kept {
			want = step.notes
		}
		if now := f.look(rec.ID).Notes; !sameNotes(now, want) {
			f.Errorf("after Save of %s the notes are %s; want %s", step.name, noted(now), noted(want))
		}
	}
}

func notesOutliveTheRun(f *fixture) {
	req, rec := f.taken(f.long)
	f.save(rec.Claim(), version(5, "by the first run"))
	f.giveBack(rec.Claim(), 0)
	next := f.takes(byAnother(req))
	if !sameNotes(next.Notes, version(5, "by the first run")) {
		f.Errorf("the next attempt got the notes %s", noted(next.Notes))
	}
	f.fenced("Save of a lesser version by the next attempt", f.saveOnce(f.ctx, next.Claim(), version(4, "older")))
	f.save(next.Claim(), version(6, "by the second run"))
	f.settle(next.Claim(), completed("x"), f.keep)
	f.settle(next.Claim(), completed("x"), f.keep)
	if now := f.look(req.ID); now.Work != nil || now.Notes.Version != 0 || now.Cancelling {
		f.Errorf("a settled operation has the work %s and the notes %s still", brief(now.Work), noted(now.Notes))
	}
	f.fenced("Save after the outcome", f.saveOnce(f.ctx, next.Claim(), version(7, "late")))

	// The same for an operation that was not accepted, and then is.
	req = f.request(f.long)
	rec = f.grant(req)
	f.save(rec.Claim(), version(1, "by a claim"))
	f.release(rec.Claim(), f.keep)
	req = byAnother(req)
	rec = f.grant(req)
	f.bare("Claim", rec)
	if now := f.look(req.ID); !sameNotes(now.Notes, version(1, "by a claim")) || now.Work != nil {
		f.Errorf("claimed again, it has the notes %s and the work %s", noted(now.Notes), brief(now.Work))
	}
	f.save(rec.Claim(), version(2, "by a claim"))
	f.release(rec.Claim(), f.keep)
	f.accepts(byAnother(req), 0)
	if next := f.takes(byAnother(req)); !sameNotes(next.Notes, version(2, "by a claim")) || !bytes.Equal(next.Work, workOf(req.ID)) {
		f.Errorf("accepted and taken then, it has the notes %s and the work %s", noted(next.Notes), brief(next.Work))
	}

	// Notes are forgotten with their record.
	req = f.request(f.long)
	rec = f.grant(req)
	f.save(rec.Claim(), version(1, "long ago"))
	f.release(rec.Claim(), store.Retention{Result: f.unit, Tombstone: f.unit})
	f.pass(1)
	f.grant(byAnother(req))
	if now := f.look(req.ID); now.Notes.Version != 0 {
		f.Errorf("a key that was forgotten, and is used again, has the notes %s", noted(now.Notes))
	}
}

// manyBytes are bytes that are easily taken for something else.
func manyBytes() map[string][]byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return map[string][]byte{
		"one NUL":        {0},
		"every byte":     every,
		"invalid UTF-8":  []byte("\xff\xfe\xc0\xaf"),
		"quotes":         []byte(`'"\%s${x}` + "`\r\n"),
		"1.5 MiB":        bytes.Repeat(every, 6144),
		"1.5 MiB of NUL": make([]byte, 3<<19),
	}
}

func workIsExact(f *fixture) {
	for name, b := range manyBytes() {
		req := f.request(f.long)
		if _, err := f.can.works.Accept(f.ctx, req, b, 0); err != nil {
			f.Fatalf("Accept with work of %s: %v", name, err)
		}
		same := func(by string, got []byte) {
			f.Helper()
			if !bytes.Equal(got, b) {
				f.Errorf("%s returned %s; want %q (%d bytes)", by, brief(got), name, len(b))
			}
		}
		same("Look", f.look(req.ID).Work)
		same("Due", f.due()[req.ID].Work)
		req = byAnother(req)
		rec := f.takes(req)
		same("Take", rec.Work)
		f.save(rec.Claim(), store.Notes{Version: 1, Data: b})
		same("Look at the notes", f.look(req.ID).Notes.Data)
		f.settle(rec.Claim(), completed("result"), f.keep)
	}
}

var lookChecks = []check{
	{"Look changes nothing", "status pages read records; Look must not mark unknown, renew or take anything.",
		lookChangesNothing},
	{"records that a store returned are never modified", "the engine shares it with callers that are still reading it.",
		workIsNotModified},
}

func lookChangesNothing(f *fixture) {
	for _, s := range f.situations() {
		for range 2 {
			rec := f.look(s.req.ID)
			if d := diff(s.rec, rec); d != "" || rec.ID != s.req.ID {
				f.Errorf("Look at a key that is %s: %s", s.name, d)
			}
			if rec.State == store.Running && (rec.LeaseLeft <= 0) != s.lapsed {
				f.Errorf("Look at a key that is %s says that %v of the lease is left", s.name, rec.LeaseLeft)
			}
			read := f.read(s.req.ID)
			f.bare("Read of a key that is "+s.name, read)
			if read.Cancelling != s.whole.Cancelling {
				f.Errorf("Read of a key that is %s says Cancelling %v; want %v", s.name, read.Cancelling, s.whole.Cancelling)
			}
		}
		if s.lapsed { // had Look marked unknown it, its own owner could not find it running
			if rec := f.claim(s.req); rec.State != store.Running || rec.Fence != s.claim.Fence {
				f.Errorf("%s: after Look, its owner found %s", s.name, show(rec))
			}
		}
	}
	never := f.request(f.long)
	if rec := f.look(never.ID); rec.State != store.None || rec.ID != never.ID {
		f.Errorf("Look at a key that was never claimed returned %s", show(rec))
	}
	if rec := f.grant(never); rec.Attempt != 1 {
		f.Errorf("after Look alone, the first claim is attempt %d", rec.Attempt)
	}
}

func workIsNotModified(f *fixture) {
	text := strings.Repeat("work", 100)
	given := []byte(text)
	req := f.request(f.long)
	if _, err := f.can.works.Accept(f.ctx, req, given, time.Duration(0)); err != nil {
		f.Fatalf("Accept: %v", err)
	}
	rec := f.takes(byAnother(req))
	notes := version(1, text)
	f.save(rec.Claim(), notes)
	seen := f.look(req.ID)
	f.save(rec.Claim(), version(2, strings.Repeat("NOTE", 100)))
	f.settle(rec.Claim(), with(strings.Repeat("MORE", 100), completed("x")), f.keep)
	for range 20 {
		other := f.request(f.long)
		if _, err := f.can.works.Accept(f.ctx, other, []byte(strings.Repeat("WORK", 100)), 0); err != nil {
			f.Fatalf("Accept: %v", err)
		}
	}
	for what, b := range map[string][]byte{"work handed in": given, "work of Take": rec.Work, "work of Look": seen.Work,
		"notes handed in": notes.Data, "notes of Look": seen.Notes.Data} {
		if string(b) != text {
			f.Errorf("%s was modified: %s", what, brief(b))
		}
	}
}
