package messages

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
)

// evidence is what is known of one order.
type evidence struct {
	effects []effect
	status  stet.Status
	letters []letter
}

// judge compares.
func (s *storm) judge(ctx context.Context) error {
	all, err := s.effects(ctx)
	if err == nil {
		err = s.records(ctx, all)
	}
	if err == nil {
		err = s.letters(ctx, all)
	}
	if err == nil {
		err = s.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM verdicts WHERE happened), (SELECT count(*) FROM verdicts WHERE NOT happened), (SELECT count(*) FROM refused)`).
			Scan(&s.rep.Happened, &s.rep.Voided, &s.rep.Refused)
	}
	if err != nil {
		return err
	}
	s.weigh(all)
	return nil
}

// weigh looks at all orders.
func (s *storm) weigh(all map[string]*evidence) {
	r := &s.rep
	var c charges
	ids := make(map[string]string, len(all)) // of messages: whose they are
	for id, e := range all {
		s.judgeOne(id, e, &c)
		for _, l := range e.letters {
			if other, ok := ids[l.ID]; ok && other != id {
				c.add("messages with the ID of another's", id)
			}
			ids[l.ID] = id
		}
	}
	c.count(r.Messages-r.Distinct, "messages were lost")
	c.count(r.Unknown, "outcomes are unknown")
	c.count(r.Dead, "dead letters")
	r.Violations = c.texts()
}

// judgeOne looks at one order.
func (s *storm) judgeOne(id string, e *evidence, c *charges) {
	r := &s.rep
	r.Effects += len(e.effects)
	r.Arrived += len(e.letters)
	if len(e.effects) > 0 {
		r.Distinct++
	}
	if len(e.effects) > 1 {
		c.add("messages had their effect more than once", id)
	}
	if e.status.Record.State == stet.Unknown {
		r.Unknown++
	}
	if e.status.Record.State != stet.Completed {
		c.add("records are not completed", id)
		return
	}
	r.Completed++
	by, nonce := settledBy(e.status.Outcome.Result)
	if len(e.effects) == 0 || e.effects[0].nonce != nonce {
		c.add("outcomes are of no effect that there is", id)
		return
	}
	if !e.effects[0].emits || by != byRun {
		if len(e.letters) > 0 {
			c.add("operations emitted a message without settling with it", id)
		}
		return
	}
	r.Emitted++
	switch len(e.letters) {
	case 0:
		c.add("emitted messages were lost", id)
		return
	case 1:
	default:
		r.Repeated++
	}
	for _, l := range e.letters {
		if l.ID == "" || l.ID != e.letters[0].ID {
			c.add("messages came with more than one ID", id)
		}
		if l.Nonce != nonce {
			c.add("messages are of a run that was not committed", id)
		}
	}
}

// effects reads the ledger.
func (s *storm) effects(ctx context.Context) (map[string]*evidence, error) {
	all := make(map[string]*evidence, s.cfg.Messages)
	for i := range s.cfg.Messages {
		all[name(i)] = new(evidence)
	}
	rows, err := s.pool.Query(ctx, `SELECT id, fence, nonce, emits FROM effects`)
	if err != nil {
		return nil, err
	}
	var e effect
	_, err = pgx.ForEachRow(rows, []any{&e.id, &e.fence, &e.nonce, &e.emits}, func() error {
		if all[e.id] == nil {
			return fmt.Errorf("an effect of %q, which nobody has published", e.id)
		}
		all[e.id].effects = append(all[e.id].effects, e)
		return nil
	})
	return all, err
}

// records reads the store.
func (s *storm) records(ctx context.Context, all map[string]*evidence) (err error) {
	site, err := s.place.open(ctx, 4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.close()) }()
	engine, err := stet.New(site.store, stet.Options{SweepEvery: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	for id, e := range all {
		if e.status, err = engine.Status(ctx, scope, engine.ID(scope, id)); err != nil {
			return err
		}
	}
	return nil
}

// letters reads what has arrived.
func (s *storm) letters(ctx context.Context, all map[string]*evidence) error {
	letters, err := s.broker.arrived(ctx)
	if err != nil {
		return err
	}
	for _, l := range letters {
		if all[l.Order] == nil {
			return fmt.Errorf("a message of %q, which nobody has published", l.Order)
		}
		all[l.Order].letters = append(all[l.Order].letters, l)
	}
	return nil
}

// charges are what is wrong, with how often and an example.
type charges struct {
	kinds   []string
	n       map[string]int
	example map[string]string
}

func (c *charges) add(kind, id string) {
	c.count(1, kind)
	if c.example[kind] == "" {
		c.example[kind] = ", such as " + id
	}
}

func (c *charges) count(n int, kind string) {
	if n == 0 {
		return
	}
	if c.n == nil {
		c.n, c.example = make(map[string]int), make(map[string]string)
	}
	if c.n[kind] == 0 {
		c.kinds = append(c.kinds, kind)
	}
	c.n[kind] += n
}

func (c *charges) texts() (all []string) {
	for _, kind := range c.kinds {
		all = append(all, fmt.Sprintf("%d %s%s", c.n[kind], kind, c.example[kind]))
	}
	return all
}
