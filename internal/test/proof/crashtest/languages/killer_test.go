package languages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
)

const (
	reachesIn  = 6 * time.Second // its point
	lease      = 1500 * time.Millisecond
	customers  = 16
	patience   = 2 * time.Minute // for one key, when all is over
	perRequest = 4 * time.Second
)

// points are where services die.
var points = []fault.Point{"received", "begun", "written", "settle.before", "settle.after", "commit.before", "commit.after", "answer.before", "answer.after",
	crashtest.Anywhere, crashtest.Anywhere, crashtest.Anywhere}

// outside are those of programs of stet.
var outside = []fault.Point{crashtest.Anywhere}

// plan is how many processes are killed, and where.
type plan struct {
	*crashtest.Plan
	kills int
}

func newPlan(kills int, points []fault.Point) plan {
	var all []crashtest.Visit
	for _, p := range points {
		all = append(all, crashtest.Visit{Point: p})
	}
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	return plan{crashtest.NewPlan(rng, kills, all, func(rng *rand.Rand, v *crashtest.Visit) { v.N = 1 + rng.IntN(6) }), kills}
}

// lane is a place for one process after the other, at one address.
type lane struct {
	*crashtest.Lane
	command func(die string) child.Command
}

// foreign is a program in any language, which ends when this process does.
func foreign(env []string, program ...string) child.Command {
	return child.Command{Path: "setpriv", Args: append([]string{"--pdeathsig", "KILL"}, program...), Env: env, Listens: func(line string) bool {
		return strings.Contains(line, "listening") || strings.Contains(line, " works for ")
	}}
}

// add adds a lane.
func (s *killer) add(addr string, kills plan, command func(die string) child.Command) *lane {
	l := &lane{&crashtest.Lane{Addr: addr, Plan: kills.Plan}, command}
	s.lanes[l.Lane] = l
	s.Lanes = append(s.Lanes, l.Lane)
	return l
}

// killer is one crash test.
type killer struct {
	crashtest.Killer
	till

	server      *rig.PostgresServer
	url         string // of the database, for its owner
	lanes       map[*crashtest.Lane]*lane
	fronts      []string // where customers send requests
	prefer      string   // what those say of waiting
	serverKills int
	pauses      int
	// more is called with each new key. May be nil.
	more func(ctx context.Context, key string) error
	// unasked says that what more asks for is another payment than that of the key.
	unasked bool
	// read is called with the ledger, before the judge. May be nil.
	read func(ledger map[string][]int64)
	// broker is killed, too, as often. May be nil.
	broker      *rig.RabbitMQServer
	brokerKills int
	// after is called when each key was asked for again, while processes live. May be nil.
	after func(context.Context) error
	// enough says that customers may stop, once all kills are done. May be nil.
	enough func(context.Context) bool

	brokers int // killed
}

// during has customers pay while processes die, until enough have.
func (s *killer) during(t *testing.T) {
	t.Helper()
	s.keys = map[string]*told{}
	s.Flaky, s.Restart, s.Restarts = true, s.restart, s.serverKills+s.brokerKills
	s.Command = func(l *crashtest.Lane, v crashtest.Visit, _ int) (child.Command, error) {
		die := ""
		if v.Point != "" && v.Point != crashtest.Anywhere {
			die = fmt.Sprintf("%s:%d", v.Point, v.N)
		}
		return s.lanes[l].command(die), nil
	}
	s.Reach = func(v crashtest.Visit) time.Duration {
		if v.Point == crashtest.Anywhere {
			return 50*time.Millisecond + rand.N(300*time.Millisecond)
		}
		return reachesIn
	}
	if err := s.While(t.Context(), s.customers); err != nil {
		t.Fatal(err)
	}
}

// restart kills PostgreSQL or the broker, in turn, and starts it again.
func (s *killer) restart(ctx context.Context) error {
	if done := s.Tally().Restarts; done >= s.serverKills || done%2 == 1 && s.brokers < s.brokerKills {
		s.brokers++
		return errors.Join(s.broker.Kill(), s.broker.Start(ctx))
	}
	return errors.Join(s.server.Kill(), s.server.Start(ctx))
}

// customers has customers pay until the faults have happened, and then ask for each payment again.
func (s *killer) customers(ctx context.Context) error {
	open, closing := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	for c := range customers {
		all.Go(func() {
			for i := 0; open.Err() == nil; i++ {
				key := fmt.Sprintf("k-%d-%d", c, i)
				first := rand.IntN(2) == 0
				if first {
					s.orders(ctx, closing, key)
				}
				s.pay(open, key)
				if !first {
					s.orders(ctx, closing, key)
				}
				time.Sleep(rand.N(20 * time.Millisecond))
			}
		})
	}
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	err := s.Befall(open, func(ctx context.Context) error { return s.StopSome(ctx, rng, lease, s.pauses) })
	for err == nil && open.Err() == nil && s.enough != nil && !s.enough(ctx) {
		time.Sleep(20 * time.Millisecond)
	}
	closing(err)
	all.Wait()
	if cause := context.Cause(open); !errors.Is(cause, context.Canceled) {
		return cause
	}
	s.ask(ctx) // of processes that live
	if s.after != nil && ctx.Err() == nil {
		return s.after(ctx)
	}
	return nil
}

// orders has a payment asked for in another way, too.
func (s *killer) orders(ctx context.Context, cancel context.CancelCauseFunc, key string) {
	if s.more == nil {
		return
	}
	if !s.unasked {
		s.asked(key)
	}
	if err := s.more(ctx, key); err != nil {
		cancel(err)
	}
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: customers}, Timeout: perRequest}

// pay sends a payment until there is a definite answer, and at times again.
func (s *killer) pay(ctx context.Context, key string) {
	for again := rand.IntN(3); ctx.Err() == nil; {
		s.asked(key)
		if s.heard(key, s.send(ctx, key)) {
			if again--; again < 0 {
				return
			}
			continue
		}
		time.Sleep(5*time.Millisecond + rand.N(20*time.Millisecond))
	}
}

func (s *killer) heard(key string, a answer) bool { return s.till.heard(key, a.status, a.body) }

// answer is a response; its status is 0 if there was none.
type answer struct {
	status int
	body   string
}

// body is what a customer sends: of each key the same.
func body(key string) string { return fmt.Sprintf(`{"key": %q}`, key) }

func (s *killer) send(ctx context.Context, key string) (a answer) {
	ctx = context.WithoutCancel(ctx) // an answer that is not waited for tells nothing
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.fronts[rand.IntN(len(s.fronts))]+"/payments", strings.NewReader(body(key)))
	if err != nil {
		return a
	}
	req.GetBody = nil // nothing is sent again but by pay
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("X-Account", "acct_1")
	req.Header.Set("Content-Type", "application/json")
	if s.prefer != "" {
		req.Header.Set("Prefer", s.prefer)
	}
	res, err := client.Do(req)
	if err != nil {
		return a
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return a
	}
	return answer{res.StatusCode, string(b)}
}

// ask asks for each key again, until there is a definite answer.
func (s *killer) ask(ctx context.Context) {
	var wg sync.WaitGroup
	todo := make(chan string)
	for range customers {
		wg.Go(func() {
			for key := range todo {
				for end := time.Now().Add(patience); ctx.Err() == nil && time.Now().Before(end) && !s.heard(key, s.send(ctx, key)); {
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	for _, key := range slices.Sorted(maps.Keys(s.keys)) {
		todo <- key
	}
	close(todo)
	wg.Wait()
}

// schema has services of few rights, and no constraint that would refuse a second payment.
const schema = `CREATE TABLE ledger (id bigserial, key text NOT NULL, by text NOT NULL);
DO $$ BEGIN CREATE ROLE shop LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT INSERT, SELECT ON ledger TO shop;
GRANT USAGE ON SEQUENCE ledger_id_seq TO shop;
GRANT USAGE ON SCHEMA stet TO shop;
GRANT EXECUTE ON FUNCTION stet.stet_begin, stet.stet_settle, stet.stet_begin_raw, stet.stet_settle_raw TO shop;
GRANT INSERT, SELECT (id, fingerprint, fence, state, gone, expires_at, forget_at, status, content_type, head, body) ON stet.records TO shop; -- for STET_MODE=statements
GRANT USAGE ON SEQUENCE stet.records_fence TO shop`

// judged reads the ledger and the records, and compares them with the replies.
func (s *killer) judged(t *testing.T) (findings, map[string]int) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	rows, err := pool.Query(t.Context(), "SELECT id, key, by FROM ledger ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	ledger, by := map[string][]int64{}, map[string]int{}
	var id int64
	var key, who string
	if _, err := pgx.ForEachRow(rows, []any{&id, &key, &who}, func() error {
		ledger[key] = append(ledger[key], id)
		by[who]++
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if s.read != nil {
		s.read(ledger)
	}
	var unknown int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM stet.records WHERE state = 5").Scan(&unknown); err != nil {
		t.Fatal(err)
	}
	return judge(&s.till, ledger, unknown), by
}
