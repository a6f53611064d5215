package storetest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/stet-go/stet"
)

// whole is the record with its work.
func (r *smallRecord) whole(now time.Time) stet.Record {
	rec := r.Record
	if r.State == stet.Running {
		rec.LeaseLeft = r.lease.Sub(now)
	}
	return rec
}

// pause lets others in, in the middle of a step that should be atomic.
func (s *small) pause(bug string) {
	if s.is(bug) {
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
}

func (s *small) park(r *smallRecord, now time.Time) {
	r.to(stet.VerbPark)
	r.SettledAt = now
	if s.is("loses work when it parks") {
		r.Work = nil
	}
}

// send makes a settled record keep what is to be sent in place of its work.
func (s *small) send(r *smallRecord, out stet.Outcome, now time.Time) {
	r.Work, r.Notes, r.Cancelling, r.due = nil, nil, false, time.Time{}
	if out.Outbox != nil && !s.is("sends nothing") {
		r.Work, r.due = s.cut(out.Outbox), now
		if !s.is("forgets what has messages") {
			r.ForgetAt = time.Time{}
		}
	}
}

func (s *small) cut(b []byte) []byte {
	if s.is("cuts work at NUL") {
		b, _, _ = bytes.Cut(b, []byte{0})
	}
	return b
}

func (s *small) Accept(ctx context.Context, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	defer s.await()()
	now, err := s.begin(ctx)
	if err != nil {
		return stet.Record{}, err
	}
	defer func() { s.end() }()
	r, write, err := s.accept(req, work, after, now)
	s.pause("accepts in two steps")
	write()
	return r.at(now), err
}

// accept returns the record as it will be, and what makes it so.
func (s *small) accept(req stet.ClaimRequest, work []byte, after time.Duration, now time.Time) (*smallRecord, func(), error) {
	r, err := s.enter(req, now)
	if err != nil && (!s.is("ignores a mismatch of what is accepted") || r.State != stet.Accepted) {
		return r, func() {}, err
	}
	if r.State == stet.Unknown && s.is("accepts what is unknown") {
		r.State = stet.Retryable
	}
	again := r.State == stet.Accepted && r.Owner == req.Owner && s.is("does not recognise its acceptance")
	if _, free := r.State.Next(stet.VerbAccept); !again && (!free || r.Owner == req.Owner) {
		return r, func() {}, nil
	}
	next := *r
	s.grant(&next, req, now)
	next.State, next.Attempt = stet.Accepted, r.Attempt
	next.Work, next.due = s.cut(work), now.Add(after)
	switch {
	case s.is("forgets accepted records"):
		next.ForgetAt = r.ForgetAt
	case s.is("makes work due at once"):
		next.due = now
	case s.is("drops the work"):
		next.Work = nil
	}
	return &next, func() { s.m[s.id(req.ID)] = &next }, nil
}

func (s *small) Take(ctx context.Context, id stet.ID, owner stet.Owner, lease time.Duration) (stet.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return stet.Record{}, err
	}
	defer func() { s.end() }()
	r := s.m[s.id(id)]
	if r == nil {
		return stet.Record{ID: id}, nil
	}
	state, was := r.State, r.Owner
	if state == stet.Running && !now.Before(r.lease) && s.is("runs lapsed claims again") {
		state = stet.Accepted
	}
	s.pause("takes in two steps")
	switch {
	case state == stet.Running && was == owner:
		if s.is("prolongs the lease for a repeated take") {
			r.lease = now.Add(lease)
		}
		if s.is("does not recognise its owner") {
			return stet.Record{}, errors.New("it is taken")
		}
	case state == stet.Running && !now.Before(r.lease):
		s.park(r, now)
	case state == stet.Accepted && (was != owner || s.is("gives work to an owner twice")), state == stet.Retryable && s.is("takes what was never accepted"):
		due, attempt := r.due, r.Attempt
		s.grant(r, stet.ClaimRequest{ID: id, Fingerprint: r.Fingerprint, Owner: owner, Lease: lease}, now)
		if r.due = (time.Time{}); s.is("leaves taken work in its queue") {
			r.due = due
		}
		if s.is("counts no attempt of a take") {
			r.Attempt = attempt
		}
	}
	return r.whole(now), nil
}

// newest returns the record if it has the claim's fence.
func (s *small) newest(c stet.Claim, bug string) *smallRecord {
	if r := s.m[s.id(c.ID)]; r != nil && (r.Fence == c.Fence || s.is(bug)) {
		return r
	}
	return nil
}

func (s *small) Return(ctx context.Context, c stet.Claim, after time.Duration) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	r := s.newest(c, "returns without the fence check")
	if r == nil || r.Work == nil && !s.is("returns what was never accepted") || r.State.Settled() {
		return stet.ErrFenced
	}
	if r.State == stet.Accepted {
		return nil
	}
	if !r.to(stet.VerbReturn) {
		return stet.ErrFenced
	}
	if r.SettledAt, r.due = now, now.Add(after); s.is("makes work due at once") {
		r.due = now
	}
	if s.is("drops notes with the run") {
		r.Notes = nil
	}
	return nil
}

func (s *small) Cancel(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) (stet.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return stet.Record{}, err
	}
	defer func() { s.end() }()
	r := s.newest(c, "cancels without the fence check")
	if r == nil {
		return stet.Record{}, stet.ErrFenced
	}
	state := r.State
	s.pause("cancels in two steps")
	switch {
	case state == stet.Accepted, state == stet.Running && s.is("cancels what runs"):
		r.State, r.Result, r.Gone = stet.Failed, out.Result, out.Gone
		if r.SettledAt, r.ExpiresAt, r.ForgetAt = now, now.Add(keep.Result), now.Add(keep.Tombstone); s.is("keeps what was cancelled for ever") {
			r.ForgetAt = now.Add(100 * keep.Tombstone)
		}
		s.send(r, stet.Outcome{}, now)
	case state == stet.Running && r.Work != nil:
		r.Cancelling = true
	case state != stet.Failed || !r.Gone && (out.Gone || !bytes.Equal(r.Result, out.Result)):
		return stet.Record{}, stet.ErrFenced
	}
	return r.whole(now), nil
}

func (s *small) Save(ctx context.Context, c stet.Claim, notes []byte) error {
	return s.put(ctx, c, notes, stet.Running)
}

func (s *small) Strike(ctx context.Context, c stet.Claim, notes []byte) error {
	if s.is("strikes nothing") {
		return nil
	}
	return s.put(ctx, c, notes, stet.Unknown)
}

func (s *small) put(ctx context.Context, c stet.Claim, notes []byte, in stet.State) error {
	if _, err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	write, err := s.save(c, notes, in)
	if err == nil {
		write()
	}
	return err
}

// save checks, and returns what is to be written to a record in that state.
func (s *small) save(c stet.Claim, notes []byte, in stet.State) (write func(), err error) {
	bug := map[stet.State]string{stet.Running: "saves without the fence check", stet.Unknown: "strikes without the fence check"}
	r := s.newest(c, bug[in])
	wrong := r != nil && r.State != in
	if s.is("saves notes of what is unknown") && in == stet.Running || s.is("strikes notes of what runs") && in == stet.Unknown {
		wrong = r != nil && r.State != stet.Running && r.State != stet.Unknown
	}
	if r == nil || wrong {
		return nil, stet.ErrFenced
	}
	version := func(b []byte) []byte { return b[:min(8, len(b))] }
	switch order := bytes.Compare(version(notes), version(r.Notes)); {
	case s.is("saves whatever comes last"):
	case order < 0:
		return nil, stet.ErrFenced
	case order == 0:
		return func() {}, nil
	}
	return func() {
		if s.is("keeps its notes in one place") && r.Notes != nil {
			copy(r.Notes, notes)
			return
		}
		r.Notes = notes[:8:8]
		r.Notes = append(r.Notes, s.cut(notes[8:])...)
	}, nil
}

func (s *small) Look(ctx context.Context, id stet.ID) (stet.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return stet.Record{}, err
	}
	defer s.end()
	r := s.m[s.id(id)]
	if r == nil {
		return stet.Record{ID: id}, nil
	}
	if s.is("parks on look") && r.State == stet.Running && !now.Before(r.lease) {
		s.park(r, now)
	}
	return r.whole(now), nil
}

func (s *small) Due(ctx context.Context, what stet.Due, limit int, again time.Duration) (recs []stet.Record, err error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { s.end() }()
	var all []*smallRecord
	for _, r := range s.m {
		if !r.due.IsZero() && !now.Before(r.due) && r.State.Settled() == (what == stet.DueRelay) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *smallRecord) int {
		if s.is("hands out the newest first") {
			a, b = b, a
		}
		return a.due.Compare(b.due)
	})
	if !s.is("hands out all at once") {
		all = all[:min(limit, len(all))]
	}
	s.pause("hands out in two steps")
	for _, r := range all {
		if r.due = now.Add(again); s.is("hands out work once") {
			r.due = time.Time{}
		}
		rec := r.whole(now)
		if !s.is("hands out notes") {
			rec.Notes, rec.Cancelling = nil, false
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

func (s *small) Relayed(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	r := s.newest(c, "relays without the fence check")
	if r == nil || !r.State.Settled() && !s.is("relays what has not ended") {
		return stet.ErrFenced
	}
	if r.Work != nil {
		r.Work, r.due, r.ForgetAt = nil, time.Time{}, now.Add(keep.Tombstone)
		if s.is("counts retention from settling") {
			r.ForgetAt = r.SettledAt.Add(keep.Tombstone)
		}
	}
	return nil
}

// await waits for a transaction that has accepted something to end, and keeps the
// next one from beginning until leave.
func (s *small) await() (leave func()) {
	if s.is("does not wait for transactions") {
		return func() {}
	}
	s.turn.RLock()
	return s.turn.RUnlock
}

func (s *small) AcceptTx(ctx context.Context, tx *smallTx, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	if s.is("accepts outside of the transaction") {
		return s.Accept(ctx, req, work, after)
	}
	if !tx.turn && !s.is("does not wait for transactions") {
		s.turn.Lock()
		tx.turn = true
	}
	now, err := s.begin(ctx)
	if err != nil {
		return stet.Record{}, err
	}
	defer s.end()
	r, write, err := s.accept(req, work, after, now)
	tx.write = append(tx.write, write)
	return r.at(now), err
}

func (s *small) SaveTx(ctx context.Context, tx *smallTx, c stet.Claim, notes []byte) error {
	if s.is("saves outside of the transaction") {
		return s.Save(ctx, c, notes)
	}
	if _, err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	write, err := s.save(c, notes, stet.Running)
	if err == nil {
		tx.write = append(tx.write, write)
	}
	return err
}

func (s *small) InTx(ctx context.Context, fn func(context.Context, *smallTx) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	tx, fine := new(smallTx), s.is("commits in spite of an error")
	defer func() { s.finish(tx, fine) }() // also when fn panics
	err = fn(ctx, tx)
	fine = fine || err == nil
	return err
}

// finish ends a transaction.
func (s *small) finish(tx *smallTx, commit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if commit {
		s.commit(tx)
	}
	if tx.turn {
		s.turn.Unlock()
	}
}
