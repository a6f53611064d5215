package storetest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// small is a small store of every kind, which can be built with a bug.
type small struct {
	bug  string
	now  func() time.Time
	mu   sync.Mutex
	m    map[store.ID]*smallRecord
	last int64
	rows map[string]int
	ring chan struct{}         // closed at every change
	held map[store.ID]*smallTx // keys that transactions hold
}

type smallRecord struct {
	store.Record
	lease time.Time
	due   time.Time // when its work or its messages are returned; zero: never
	bad   bool      // it cannot be read
	proof bool      // see store.ClaimRequest.Outside
}

// Outside implements store.OutsideStore.
func (s *small) Outside() {}

func (s *small) is(bug string) bool { return s.bug == bug }

// begin locks the store and makes all due changes.
func (s *small) begin(ctx context.Context) (now time.Time, err error) {
	if err := ctx.Err(); err != nil && !s.is("ignores ended contexts") {
		return now, err
	}
	s.mu.Lock()
	now = s.now()
	if s.is("expires by the caller's clock") {
		now = time.Now()
	}
	for _, r := range s.m {
		if !r.bad {
			s.due(r, now)
		}
	}
	return now, nil
}

func (s *small) due(r *smallRecord, now time.Time) {
	if !r.ForgetAt.IsZero() && s.over(now, r.ForgetAt) {
		delete(s.m, r.ID)
	}
	if r.State.Settled() && s.over(now, r.ExpiresAt) && !s.is("returns expired results") {
		if s.is("overwrites an expired result in place") {
			clear(r.Result.Body)
		}
		r.Result, r.Gone = store.Result{}, true
	}
}

// id is what the store knows a record by.
func (s *small) id(id store.ID) store.ID {
	if i := bytes.IndexByte(id[:], 0); i >= 0 && s.is("cuts IDs at NUL") {
		clear(id[i:])
	}
	return id
}

func (s *small) end() {
	if !s.is("does not notify watchers") {
		close(s.ring)
	}
	s.ring = make(chan struct{})
	s.mu.Unlock()
}

func (r *smallRecord) at(now time.Time) store.Record {
	rec := r.whole(now)
	rec.Work, rec.Notes, rec.Outbox, rec.Cancelling = nil, store.Notes{}, nil, false
	return rec
}

func (s *small) grant(r *smallRecord, req store.ClaimRequest, now time.Time) {
	s.last++
	fence := s.last
	if s.is("restarts fences after forgetting") {
		fence = r.Fence + 1
	}
	forget := r.ForgetAt
	r.Record = store.Record{ID: req.ID, Scope: r.Scope, Label: s.label(r, req), State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner,
		Fence: fence, Attempt: r.Attempt + 1, ClaimedAt: now, Work: r.Work, Notes: r.Notes, Cancelling: r.Cancelling}
	if s.is("counts attempts from zero") {
		r.Attempt--
	}
	if s.is("forgets running records") {
		r.ForgetAt = forget
	}
	r.lease, r.proof = s.later(now, req.Lease), req.Outside || r.proof && s.is("takes each run as settled outside")
}

// label is what a record is called once req has claimed or accepted it.
func (s *small) label(r *smallRecord, req store.ClaimRequest) store.Label {
	switch {
	case s.is("drops labels"):
		return store.Label{}
	case s.is("keeps the first label") && r.Label != store.Label{}:
		return r.Label
	}
	return req.Label
}

func (s *small) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer func() { s.end() }()
	now = s.await(req.ID, nil, now)
	if len(s.m) == 100 && s.is("takes a hundred keys") {
		return store.Record{}, errors.New("full")
	}
	r, err := s.enter(req, now)
	if err != nil {
		return r.at(now), err
	}
	if r.State == store.Accepted && s.is("claims accepted records") {
		r.State = store.Retryable
	}
	if _, free := r.State.Next(store.VerbClaim); free && (r.Owner != req.Owner || s.is("grants an owner twice")) {
		if s.is("claims in two steps") {
			s.mu.Unlock()
			runtime.Gosched()
			s.mu.Lock()
		}
		s.grant(r, req, now)
		if s.m[s.id(req.ID)] == nil || !s.is("claims in two steps") {
			s.m[s.id(req.ID)] = r
		}
	}
	return r.at(now), nil
}

// enter is what Claim and RunTx have in common: all but the grant.
func (s *small) enter(req store.ClaimRequest, now time.Time) (*smallRecord, error) {
	r := s.m[s.id(req.ID)]
	if err := s.unreadable(r); err != nil {
		return new(smallRecord), err
	}
	if r != nil && r.State == store.None { // see "makes records on read"
		r.Scope, r.Fingerprint = req.Scope, req.Fingerprint
	}
	if r == nil || s.is("claims without the existence check") {
		r = &smallRecord{Record: store.Record{ID: req.ID, Scope: req.Scope}}
		if s.is("drops the scope") {
			r.Scope = store.ID{}
		}
		return r, nil
	}
	live := !s.over(now, r.lease)
	switch {
	case r.Fingerprint != req.Fingerprint && (!s.is("takes no fingerprint for any") || req.Fingerprint != store.Fingerprint{}):
		if s.is("marks unknown on a mismatch") && r.State == store.Running && !live {
			r.to(store.VerbMarkUnknown)
		}
		if !s.is("ignores a mismatch while running") || r.State != store.Running {
			return r, store.ErrMismatch
		}
	case r.State == store.Running && r.Owner == req.Owner:
		if s.is("does not recognise its owner") {
			return r, errors.New("the key is taken")
		}
	case r.State == store.Running && !live && s.is("runs expired claims again"):
		r.State = store.Retryable
	case r.State == store.Running && !live:
		s.markUnknown(r, now)
	case r.State == store.Running && s.is("prolongs the lease for anyone"):
		r.lease = now.Add(req.Lease)
	}
	return r, nil
}

func (s *small) Read(ctx context.Context, id store.ID) (store.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer s.end()
	r := s.m[s.id(id)]
	if r == nil {
		if s.is("makes records on read") {
			s.m[id] = &smallRecord{Record: store.Record{ID: id, Attempt: 1}}
		}
		return store.Record{ID: id}, nil
	}
	if err := s.unreadable(r); err != nil {
		return store.Record{}, err
	}
	if s.is("marks unknown on read") && r.State == store.Running && !now.Before(r.lease) {
		r.to(store.VerbMarkUnknown)
		r.SettledAt = now
	}
	rec := r.at(now)
	rec.Cancelling = r.Cancelling && !s.is("reads no cancellation")
	return rec, nil
}

func (s *small) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, err error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.end()
	bad := hurt{s: s}
	for i, c := range claims {
		if i == 100 && s.is("extends a hundred claims") {
			break
		}
		r := s.m[s.id(c.ID)]
		if bad.skips(r) {
			if s.is("gives damaged claims up for lost") {
				lost = append(lost, c)
			}
			if s.is("renews nothing past a damaged record") {
				break
			}
			continue
		}
		if r == nil || r.State != store.Running || r.Fence != c.Fence && !s.is("extends without the fence check") ||
			s.is("gives lapsed leases up") && !now.Before(r.lease) {
			lost = append(lost, c)
			continue
		}
		if s.is("stacks leases up") && now.Before(r.lease) {
			now = r.lease
		}
		if r.lease = now.Add(lease); r.repeats() && r.lease.After(r.due) && !s.is("returns live runs as due") {
			r.due = r.lease
		}
	}
	return lost, bad.result()
}

func (s *small) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	write, err := s.settle(c, out, keep, now)
	if err == nil {
		write()
	}
	return err
}

// settle checks, and returns the writes.
func (s *small) settle(c store.Claim, out store.Settlement, keep store.Retention, now time.Time) (write func(), err error) {
	if out.Result.Size() > smallMost && !s.is("takes any result") {
		return nil, store.ErrInvalid
	}
	r := s.m[s.id(c.ID)]
	if r == nil || r.Fence != c.Fence && !s.is("settles without the fence check") {
		return nil, store.ErrFenced
	}
	same := r.State == out.State && r.Gone == out.Gone && (r.Gone || s.equal(r.Result, out.Result))
	if same && (now.Before(r.ExpiresAt) || s.is("treats an expired result as never stored")) && !s.is("refuses a repeated settle") {
		if s.is("writes messages again") {
			return func() { s.send(r, out, now) }, nil
		}
		return func() {}, nil
	}
	_, ok := r.State.Next(verbOf(out))
	late := r.State == store.Unknown || r.State == store.Running && !now.Before(r.lease)
	if late && s.is("refuses a late settle") || !ok && (!r.State.Settled() || !s.is("accepts a second outcome")) {
		return nil, store.ErrFenced
	}
	return func() {
		r.State, r.Gone = out.State, out.Gone && !s.is("stores a discarded result as empty")
		r.Result = s.kept(out.Result)
		r.SettledAt, r.ExpiresAt, r.ForgetAt = now, s.later(now, keep.Result), s.later(now, keep.Tombstone)
		if s.is("moves ClaimedAt when it settles") {
			r.ClaimedAt = now
		}
		if s.is("adds the tombstone to the result") {
			r.ForgetAt = r.ExpiresAt.Add(keep.Tombstone)
		}
		s.send(r, out, now)
	}, nil
}

func (s *small) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	r := s.m[s.id(c.ID)]
	if r == nil || r.Fence != c.Fence && !s.is("releases without the fence check") {
		return store.ErrFenced
	}
	if (r.State == store.Retryable || r.State == store.Accepted) && !s.is("refuses a repeated release") {
		return nil
	}
	if r.Work != nil && !s.is("releases work as retryable") && r.to(store.VerbReturn) {
		r.SettledAt, r.due, r.lease = now, now, now
		return nil
	}
	if !r.to(store.VerbRelease) && !s.is("releases settled records") {
		return store.ErrFenced
	}
	r.State, r.SettledAt, r.ForgetAt = store.Retryable, now, now.Add(keep.Result)
	return nil
}

func (s *small) Watch(ctx context.Context, id store.ID, fence int64) error {
	for {
		s.mu.Lock()
		r, ring := s.m[s.id(id)], s.ring
		runs := r != nil && r.State == store.Running && r.Fence == fence || s.is("wakes no watcher")
		s.mu.Unlock()
		if !runs {
			return nil
		}
		select {
		case <-ring:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *small) Sweep(ctx context.Context, limit int) (swept store.Swept, err error) {
	if err := ctx.Err(); err != nil {
		return swept, err
	}
	s.mu.Lock()
	defer s.end()
	now := s.now()
	bad := hurt{s: s}
	for id, r := range s.m {
		if r.bad && s.is("sweeps damaged records away") {
			delete(s.m, id)
			continue
		}
		if bad.skips(r) {
			continue
		}
		gone := r.Gone
		if s.due(r, now); s.m[id] == nil {
			swept.Purged++
		} else if r.Gone != gone {
			swept.Expired++
		}
		if r.State != store.Running || now.Before(r.lease) && !s.is("sweeps live claims") {
			continue
		}
		if swept.MarkedUnknown == limit && !s.is("sweeps without a bound") {
			swept.More = true
			break
		}
		if s.markUnknown(r, now); r.State == store.Unknown {
			swept.MarkedUnknown++
		}
	}
	return swept, bad.result()
}

func (s *small) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *smallTx, store.Record) (store.Settlement, error)) (store.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	tx := newSmallTx()
	defer func() {
		s.leave(tx)
		s.end()
	}()
	beside, early := s.held[s.id(req.ID)] != nil, s.is("gives transactions a fence that is none")
	if !early {
		now = s.await(req.ID, tx, now)
	}
	if beside && (early || s.is("gives transactions a fence that is none, and late")) {
		return store.Record{ID: req.ID, Scope: req.Scope, State: store.Running, Fingerprint: req.Fingerprint, Fence: -1}, nil
	}
	was, err := s.enter(req, now)
	if err != nil {
		return was.at(now), err
	}
	_, free := was.State.Next(store.VerbCommit)
	if !free && (was.State != store.Unknown || !s.is("runs unknown records in transactions")) {
		return was.at(now), nil
	}
	r := *was
	s.grant(&r, req, now)
	s.hold(req.ID, tx)
	if s.is("commits rows without the record") {
		defer s.commit(tx)
	}
	out, err := s.outside(func() (store.Settlement, error) { return fn(ctx, tx, r.at(now)) })
	if err := errors.Join(err, s.gone(was, req.ID)); err != nil {
		return store.Record{}, err
	}
	now = s.now()
	r.State, r.Result, r.Gone = out.State, out.Result, out.Gone
	r.SettledAt, r.ExpiresAt, r.ForgetAt = now, now.Add(keep.Result), now.Add(keep.Tombstone)
	s.send(&r, out, now)
	if !s.is("commits rows without the record") {
		s.commit(tx)
	}
	if !s.is("commits rows alone") {
		s.m[s.id(req.ID)] = &r
	}
	return r.at(now), nil
}

func (s *small) SettleTx(ctx context.Context, tx *smallTx, c store.Claim, out store.Settlement, keep store.Retention) error {
	if s.is("settles outside of the transaction") {
		return s.Settle(ctx, c, out, keep)
	}
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	if r := s.m[s.id(c.ID)]; r != nil && r.State.Settled() && !s.is("settles twice in transactions") {
		return store.ErrFenced
	}
	write, err := s.settle(c, out, keep, now)
	if err != nil {
		return err
	}
	tx.write = append(tx.write, write)
	s.hold(c.ID, tx)
	if s.is("sends messages before the commit") {
		s.send(s.m[s.id(c.ID)], out, now)
	}
	return nil
}

// commit writes what the transaction holds. The caller holds s.mu.
func (s *small) commit(tx *smallTx) {
	for _, row := range tx.rows {
		s.rows[row]++
	}
	for _, write := range tx.write {
		write()
	}
}

// smallHarness makes small stores with a bug, on a clock of their own.
func smallHarness(bug string) TxHarness[*smallTx] {
	var mu sync.Mutex
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	return TxHarness[*smallTx]{
		Harness: Harness{
			New: func(testing.TB) store.Store {
				return &small{bug: bug, now: clock, m: make(map[store.ID]*smallRecord), rows: make(map[string]int), ring: make(chan struct{}), held: make(map[store.ID]*smallTx)}
			},
			Advance: func(_ testing.TB, d time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				now = now.Add(d)
			},
			Damage: smallDamage,
		},
		Write: func(_ context.Context, tx *smallTx, name string) error {
			tx.rows = append(tx.rows, name)
			return nil
		},
		Rows: func(_ testing.TB, s store.TxStore[*smallTx], name string) int {
			sm := s.(*small)
			sm.mu.Lock()
			defer sm.mu.Unlock()
			return sm.rows[name]
		},
		Begin: func(_ testing.TB, s store.TxStore[*smallTx]) (*smallTx, func(bool) error) {
			tx := newSmallTx()
			return tx, func(commit bool) error {
				s.(*small).finish(tx, commit)
				return nil
			}
		},
	}
}
