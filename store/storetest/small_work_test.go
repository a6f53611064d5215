package storetest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

// whole is the record with its work.
func (r *smallRecord) whole(now time.Time) store.Record {
	rec := r.Record
	if r.State == store.Running {
		rec.LeaseLeft = r.lease.Sub(now)
	}
	return rec
}

// pause lets others in, in the middle of a step that should be atomic.
func (s *small) pause(bug string) {
	if s.is(bug) {
		s.mu.Unlock()
		for range 50 { // on a loaded machine one turn may come to no other caller
			runtime.Gosched()
		}
		s.mu.Lock()
	}
}

// repeats reports whether r's run may be repeated: it is due some time.
func (r *smallRecord) repeats() bool {
	return r.State == store.Running && !r.due.IsZero()
}

func (s *small) markUnknown(r *smallRecord, now time.Time) {
	if r.SettledAt = now; r.repeats() && !s.is("marks repeatable runs unknown") {
		r.to(store.VerbReturn)
		r.lease = now
	} else if r.proof && !s.is("marks runs settled outside unknown") {
		r.to(store.VerbRelease)
		r.ForgetAt = now.Add(24 * time.Hour)
	} else {
		r.to(store.VerbMarkUnknown)
	}
	if s.is("forgets a cancellation when it marks a record unknown") {
		r.Cancelling = false
	}
	if s.is("loses work when it marks a record unknown") {
		r.Work = nil
	}
}

// send makes a settled record keep messages to send in place of its work.
func (s *small) send(r *smallRecord, out store.Settlement, now time.Time) {
	r.Work, r.Notes, r.Outbox, r.due = nil, store.Notes{}, nil, time.Time{}
	if !s.is("keeps a cancellation past the outcome") {
		r.Cancelling = false
	}
	if out.Outbox != nil && !s.is("sends nothing") && (len(out.Outbox) > 0 || !s.is("takes an empty outbox for none")) {
		r.Outbox, r.due = s.cut(out.Outbox), now
		if !s.is("forgets records with messages") {
			r.ForgetAt = time.Time{}
		}
	}
}

func (s *small) cut(b []byte) []byte {
	if b == nil && !s.is("takes empty work for none") {
		b = []byte{}
	}
	if s.is("cuts work at NUL") {
		b, _, _ = bytes.Cut(b, []byte{0})
	}
	return b
}

func (s *small) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer func() { s.end() }()
	now = s.await(req.ID, nil, now)
	r, write, err := s.accept(req, work, after, now)
	s.pause("accepts in two steps")
	write()
	return r.at(now), err
}

// accept returns the record as it will be, and what makes it so.
func (s *small) accept(req store.ClaimRequest, work []byte, after time.Duration, now time.Time) (*smallRecord, func(), error) {
	r, err := s.enter(req, now)
	if err != nil && (!s.is("ignores a mismatch of accepted records") || r.State != store.Accepted) {
		return r, func() {}, err
	}
	if r.State == store.Unknown && s.is("accepts unknown records") {
		r.State = store.Retryable
	}
	again := r.State == store.Accepted && r.Owner == req.Owner && s.is("does not recognise its acceptance")
	if _, free := r.State.Next(store.VerbAccept); !again && (!free || r.Owner == req.Owner) {
		return r, func() {}, nil
	}
	next := *r
	s.grant(&next, req, now)
	next.State, next.Attempt = store.Accepted, r.Attempt
	next.Work, next.due = s.cut(work), s.later(now, max(after, req.Queued))
	next.lease = s.later(now, after) // before that it cannot be taken
	switch {
	case s.is("forgets accepted records"):
		next.ForgetAt = r.ForgetAt
	case s.is("makes work due at once"):
		next.due = now
	case s.is("returns queued work as due"):
		next.due = next.lease
	case s.is("keeps queued work from workers"):
		next.lease = next.due
	case s.is("drops the work"):
		next.Work = nil
	}
	return &next, func() { s.m[s.id(req.ID)] = &next }, nil
}

func (s *small) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	id, owner, lease := req.ID, req.Owner, req.Lease
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer func() { s.end() }()
	r := s.m[s.id(id)]
	if r == nil {
		return store.Record{ID: id}, nil
	}
	if s.held[s.id(id)] != nil && !s.is("takes a record that a transaction is settling") {
		return store.Record{}, store.ErrNotDone
	}
	if err := s.unreadable(r); err != nil {
		return store.Record{}, err
	}
	state, was := r.State, r.Owner
	if state == store.Running && !now.Before(r.lease) && (r.repeats() && !s.is("marks repeatable runs unknown") || s.is("runs expired claims again")) {
		state = store.Accepted
	}
	early := now.Before(r.lease) && !s.is("lets workers take delayed work early")
	s.pause("takes in two steps")
	switch {
	case state == store.Running && was == owner:
		if s.is("prolongs the lease for a repeated take") {
			r.lease = now.Add(lease)
		}
		if s.is("does not recognise its owner") {
			return store.Record{}, errors.New("it is taken")
		}
	case state == store.Running && !now.Before(r.lease):
		s.markUnknown(r, now)
	case state == store.Accepted && !early && (was != owner || s.is("gives work to an owner twice")), state == store.Retryable && s.is("takes records that were not accepted"):
		due, attempt := r.due, r.Attempt
		s.grant(r, store.ClaimRequest{ID: id, Fingerprint: r.Fingerprint, Owner: owner, Lease: lease, Label: r.Label}, now)
		switch r.due = (time.Time{}); {
		case s.is("leaves taken work in its queue"):
			r.due = due
		case req.Repeatable && !s.is("forgets repeatable runs"):
			r.due = r.lease
		}
		if s.is("counts no attempt of a take") {
			r.Attempt = attempt
		}
		if s.is("forgets a cancellation when it is taken") {
			r.Cancelling = false
		}
	}
	return r.whole(now), nil
}

// newest returns the record if it has the claim's fence.
func (s *small) newest(c store.Claim, bug string) *smallRecord {
	if r := s.m[s.id(c.ID)]; r != nil && (r.Fence == c.Fence || s.is(bug)) {
		return r
	}
	return nil
}

func (s *small) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	r := s.newest(c, "returns without the fence check")
	if r == nil || r.Work == nil && !s.is("returns records that were not accepted") || r.State.Settled() {
		return store.ErrFenced
	}
	if r.State == store.Accepted {
		return nil
	}
	if !r.to(store.VerbReturn) {
		return store.ErrFenced
	}
	r.lease = now.Add(after)
	if r.SettledAt, r.due = now, r.lease; s.is("makes work due at once") {
		r.due = now
	}
	if s.is("drops notes with the run") {
		r.Notes = store.Notes{}
	}
	return nil
}

func (s *small) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer func() { s.end() }()
	r := s.newest(c, "cancels without the fence check")
	if r == nil {
		return store.Record{}, store.ErrFenced
	}
	state := r.State
	s.pause("cancels in two steps")
	switch {
	case state == store.Accepted, state == store.Running && s.is("cancels running operations"):
		r.State, r.Result, r.Gone = store.Failed, out.Result, out.Gone
		if r.SettledAt, r.ExpiresAt, r.ForgetAt = now, now.Add(keep.Result), now.Add(keep.Tombstone); s.is("keeps cancelled records permanently") {
			r.ForgetAt = now.Add(100 * keep.Tombstone)
		}
		s.send(r, store.Settlement{}, now)
	case state == store.Running && r.Work != nil:
		r.Cancelling = true
	case state != store.Failed || !now.Before(r.ExpiresAt) || r.Gone != out.Gone || !r.Gone && !r.Result.Equal(out.Result):
		return store.Record{}, store.ErrFenced
	}
	return r.whole(now), nil
}

func (s *small) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.put(ctx, c, notes, store.Running, repeatable)
}

func (s *small) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	if s.is("amends nothing") {
		return nil
	}
	return s.put(ctx, c, notes, store.Unknown, false)
}

func (s *small) put(ctx context.Context, c store.Claim, notes store.Notes, in store.State, repeatable bool) error {
	if _, err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	write, err := s.save(c, notes, in, repeatable)
	if err == nil {
		write()
	}
	return err
}

// save checks, and returns the writes to a record in that state.
func (s *small) save(c store.Claim, notes store.Notes, in store.State, repeatable bool) (write func(), err error) {
	bug := map[store.State]string{store.Running: "saves without the fence check", store.Unknown: "amends without the fence check"}
	r := s.newest(c, bug[in])
	wrong := r != nil && r.State != in
	if s.is("saves notes of unknown records") && in == store.Running || s.is("amends notes of running records") && in == store.Unknown {
		wrong = r != nil && r.State != store.Running && r.State != store.Unknown
	}
	if r == nil || wrong {
		return nil, store.ErrFenced
	}
	switch was := r.Notes.Version; {
	case s.is("saves any version"):
	case s.is("compares versions as signed numbers") && int64(notes.Version) < int64(was), !s.is("compares versions as signed numbers") && notes.Version < was:
		return nil, store.ErrFenced
	case notes.Version == was:
		return func() {}, nil
	}
	return func() {
		if in == store.Running && !s.is("does not store that a run may be repeated") {
			switch is := repeatable && r.Work != nil; {
			case !is:
				r.due = time.Time{}
			case !r.repeats():
				r.due = r.lease
			}
		}
		if s.is("keeps its notes in one place") && r.Notes.Data != nil {
			copy(r.Notes.Data, notes.Data)
			r.Notes.Version = notes.Version
			return
		}
		r.Notes = store.Notes{Version: notes.Version, Data: s.cut(notes.Data)}
	}, nil
}

func (s *small) Look(ctx context.Context, id store.ID) (store.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer s.end()
	r := s.m[s.id(id)]
	if r == nil {
		return store.Record{ID: id}, nil
	}
	if err := s.unreadable(r); err != nil {
		return store.Record{}, err
	}
	if s.is("marks unknown on Look") && r.State == store.Running && !now.Before(r.lease) {
		s.markUnknown(r, now)
	}
	return r.whole(now), nil
}

func (s *small) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	return s.callDue(ctx, false, limit, again, names)
}

func (s *small) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return s.callDue(ctx, true, limit, again, nil)
}

func (s *small) callDue(ctx context.Context, messages bool, limit int, again time.Duration, names []string) (recs []store.Record, err error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { s.end() }()
	var all []*smallRecord
	for _, r := range s.m {
		if !r.due.IsZero() && s.over(now, r.due) && (r.Outbox != nil) == messages &&
			(len(names) == 0 || slices.Contains(names, r.Label.Name) || s.is("returns due work of all names")) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *smallRecord) int {
		if s.is("returns the newest first") {
			a, b = b, a
		}
		return a.due.Compare(b.due)
	})
	if !messages && !s.is("returns the oldest of all names first") {
		all = inTurns(all)
	}
	if !s.is("returns all due work at once") {
		all = all[:min(limit, len(all))]
	}
	s.pause("returns due work in two steps")
	bad := hurt{s: s}
	for _, r := range all {
		if r.bad && s.is("does not put damaged work off") {
			bad.skips(r)
			continue
		}
		if r.due = now.Add(again); s.is("returns due work once") {
			r.due = time.Time{}
		}
		if bad.skips(r) {
			continue
		}
		rec := r.whole(now)
		if !s.is("returns notes with due work") {
			rec.Notes, rec.Cancelling = store.Notes{}, false
		}
		recs = append(recs, rec)
	}
	if s.is("names no damaged work") {
		return recs, nil
	}
	return recs, bad.result()
}

// inTurns orders records by their places among those of their names.
func inTurns(all []*smallRecord) []*smallRecord {
	place, seen := make(map[*smallRecord]int), make(map[string]int)
	for _, r := range all {
		place[r] = seen[r.Label.Name]
		seen[r.Label.Name]++
	}
	slices.SortStableFunc(all, func(a, b *smallRecord) int { return place[a] - place[b] })
	return all
}

func (s *small) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	r := s.newest(c, "relays without the fence check")
	if r == nil || !r.State.Settled() && !s.is("relays records that have not ended") {
		return store.ErrFenced
	}
	if r.Outbox != nil {
		r.Outbox, r.due, r.ForgetAt = nil, time.Time{}, s.later(now, keep.Tombstone)
		if s.is("counts retention from settling") {
			r.ForgetAt = r.SettledAt.Add(keep.Tombstone)
		}
	}
	return nil
}

func (s *small) AcceptTx(ctx context.Context, tx *smallTx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	if s.is("accepts outside of the transaction") {
		return s.Accept(ctx, req, work, after)
	}
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer func() { s.end() }()
	now = s.await(req.ID, tx, now)
	s.hold(req.ID, tx)
	r, write, err := s.accept(req, work, after, now)
	tx.write = append(tx.write, write)
	return r.at(now), err
}

func (s *small) SaveTx(ctx context.Context, tx *smallTx, c store.Claim, notes store.Notes, repeatable bool) error {
	if s.is("saves outside of the transaction") {
		return s.Save(ctx, c, notes, repeatable)
	}
	if _, err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	write, err := s.save(c, notes, store.Running, repeatable)
	if err == nil {
		tx.write = append(tx.write, write)
	}
	return err
}

func (s *small) InTx(ctx context.Context, fn func(context.Context, *smallTx) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	tx, fine := newSmallTx(), s.is("commits in spite of an error")
	defer func() { s.finish(tx, fine) }() // also when fn panics
	err = fn(ctx, tx)
	fine = fine || err == nil
	return err
}
