package languages

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/test/rig"
)

const (
	anyMoment  = "at any moment" // a kill from outside
	startsIn   = time.Minute
	reachesIn  = 6 * time.Second // its point
	lease      = 1500 * time.Millisecond
	pausedFor  = 2 * lease
	customers  = 16
	patience   = 2 * time.Minute // for one key, when all is over
	perRequest = 4 * time.Second
)

// points are where services die.
var points = []string{"received", "begun", "written", "settle.before", "settle.after", "commit.before", "commit.after", "answer.before", "answer.after",
	anyMoment, anyMoment, anyMoment}

// budget is how many processes of a kind must be killed.
type budget struct {
	mu      sync.Mutex
	left    int
	byPoint map[string]int // killed so far
	points  []string
	next    int
	spent   chan struct{}
	want    int
}

func newBudget(kills int, points []string) *budget {
	b := &budget{left: kills, want: kills, byPoint: map[string]int{}, points: points, spent: make(chan struct{})}
	if kills == 0 {
		close(b.spent)
	}
	return b
}

// take returns where the next process dies; "" if it is to live.
func (b *budget) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 {
		return ""
	}
	b.left--
	b.next++
	return b.points[b.next%len(b.points)]
}

func (b *budget) died(at string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.byPoint[at]++
	if b.kills() == b.want {
		close(b.spent)
	}
}

func (b *budget) giveBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left++
}

func (b *budget) kills() (n int) {
	for _, k := range b.byPoint {
		n += k
	}
	return n
}

func (b *budget) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for _, p := range slices.Sorted(maps.Keys(b.byPoint)) {
		all = append(all, fmt.Sprintf("%s %d", p, b.byPoint[p]))
	}
	return strings.Join(all, ", ")
}

// absence is how many servers are away, and how often that has changed.
type absence struct{ now, changes atomic.Int64 }

// lane is a place for one process after the other, at one address.
type lane struct {
	addr    string
	command func(die string) *exec.Cmd // which says that it is listening
	kills   *budget

	mu  sync.Mutex
	cmd *exec.Cmd // that runs
}

// start starts a process, and returns when it listens, with a channel that is closed when
// it has ended.
func (l *lane) start(ctx context.Context, die string) (*exec.Cmd, <-chan struct{}, error) {
	cmd := l.command(die)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, nil, err
	}
	l.mu.Lock()
	l.cmd = cmd
	l.mu.Unlock()
	ready, ended := make(chan struct{}), make(chan struct{})
	var said bytes.Buffer
	go func() { // ends with the process
		defer close(ended)
		lines, open := bufio.NewScanner(io.LimitReader(r, 1<<26)), true
		for lines.Scan() {
			if said.Len() < 1<<16 {
				fmt.Fprintln(&said, lines.Text())
			}
			if open && (strings.Contains(lines.Text(), "listening") || strings.Contains(lines.Text(), " works for ")) {
				close(ready)
				open = false
			}
		}
		_ = cmd.Wait()
		_ = r.Close()
	}()
	select {
	case <-ready:
		return cmd, ended, nil
	case <-ended:
		return nil, nil, fmt.Errorf("%s has ended: %s", cmd, said.String())
	case <-time.After(startsIn):
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill()
	<-ended
	return nil, nil, fmt.Errorf("%s does not listen: %s", cmd, said.String())
}

// hold starts processes that die one after the other, and then a process that lives until ctx ends.
func (l *lane) hold(ctx context.Context, away *absence) error {
	for ctx.Err() == nil {
		at := l.kills.take()
		die := ""
		if at != "" && at != anyMoment {
			die = fmt.Sprintf("%s:%d", at, 1+rand.IntN(6))
		}
		was, gone := away.changes.Load(), away.now.Load() > 0
		cmd, ended, err := l.start(ctx, die)
		if err == nil {
			at, err = l.fate(ctx, cmd, ended, at)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (gone || away.changes.Load() != was): // a server was away
			if at != "" {
				l.kills.giveBack()
			}
			time.Sleep(50 * time.Millisecond)
		case err != nil:
			return err
		default:
			l.kills.died(at)
		}
	}
	return nil
}

// fate waits until a process has died, or kills it, and says where it was.
func (l *lane) fate(ctx context.Context, cmd *exec.Cmd, ended <-chan struct{}, at string) (string, error) {
	late := make(<-chan time.Time)
	switch at {
	case "":
	case anyMoment:
		late = time.After(50*time.Millisecond + rand.N(300*time.Millisecond))
	default:
		late = time.After(reachesIn)
	}
	select {
	case <-ended:
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL || at == "" {
			return at, fmt.Errorf("%s has ended by itself: %v", cmd, cmd.ProcessState)
		}
		return at, nil
	case <-late:
		at = anyMoment
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill()
	<-ended
	return at, nil
}

// pause stops what runs in a lane for longer than a lease.
func (l *lane) pause() bool {
	l.mu.Lock()
	cmd := l.cmd
	l.mu.Unlock()
	if cmd == nil || cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	time.Sleep(pausedFor)
	return cmd.Process.Signal(syscall.SIGCONT) == nil // it may have been killed
}

// crash test is one crash test.
type killer struct {
	server      *rig.PostgresServer
	url         string // of the database, for its owner
	lanes       []*lane
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

	till
	away          absence
	killed, still atomic.Int64 // servers killed, processes paused
	brokers       atomic.Int64 // brokers killed
}

// during has customers pay while processes die, until enough have.
func (s *killer) during(t *testing.T) {
	t.Helper()
	s.keys = map[string]*told{}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var lanes, others sync.WaitGroup
	for _, l := range s.lanes {
		lanes.Go(func() {
			if err := l.hold(ctx, &s.away); err != nil {
				cancel(err)
			}
		})
	}
	open, closing := context.WithCancel(ctx)
	for c := range customers {
		others.Go(func() {
			for i := 0; open.Err() == nil; i++ {
				key := fmt.Sprintf("k-%d-%d", c, i)
				first := rand.IntN(2) == 0
				if first {
					s.orders(ctx, cancel, key)
				}
				s.pay(open, key)
				if !first {
					s.orders(ctx, cancel, key)
				}
				time.Sleep(rand.N(20 * time.Millisecond))
			}
		})
	}
	others.Go(func() { s.killServers(open, cancel, s.server, s.serverKills, &s.killed) })
	if s.broker != nil {
		others.Go(func() { s.killServers(open, cancel, s.broker, s.brokerKills, &s.brokers) })
	}
	others.Go(func() {
		for s.still.Load() < int64(s.pauses) && open.Err() == nil {
			if s.lanes[rand.IntN(len(s.lanes))].pause() {
				s.still.Add(1)
			}
		}
	})
	for _, l := range s.lanes {
		select {
		case <-l.kills.spent:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil && (s.killed.Load() < int64(s.serverKills) || s.brokers.Load() < int64(s.brokerKills) || s.still.Load() < int64(s.pauses) || s.enough != nil && !s.enough(ctx)) {
		time.Sleep(20 * time.Millisecond)
	}
	closing()
	others.Wait()
	s.ask(ctx) // each again, of processes that live
	if s.after != nil && ctx.Err() == nil {
		if err := s.after(ctx); err != nil {
			cancel(err)
		}
	}
	cause := context.Cause(ctx)
	cancel(nil)
	lanes.Wait()
	if cause != nil {
		t.Fatal(cause)
	}
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

// server is what stands behind the processes.
type server interface {
	Kill() error
	Start(ctx context.Context) error
}

func (s *killer) killServers(ctx context.Context, cancel context.CancelCauseFunc, server server, times int, killed *atomic.Int64) {
	for i := range times {
		for total, kills := s.kills(); kills < total*(i+1)/(times+1) && ctx.Err() == nil; total, kills = s.kills() {
			time.Sleep(20 * time.Millisecond)
		}
		if ctx.Err() != nil {
			return
		}
		s.away.now.Add(1)
		s.away.changes.Add(1)
		if err := errors.Join(server.Kill(), server.Start(ctx)); err != nil {
			cancel(err)
		}
		s.away.changes.Add(1)
		s.away.now.Add(-1)
		killed.Add(1)
	}
}

// kills counts the wanted and the finished kills.
func (s *killer) kills() (want, n int) {
	seen := map[*budget]bool{}
	for _, l := range s.lanes {
		if b := l.kills; !seen[b] {
			seen[b] = true
			b.mu.Lock()
			want, n = want+b.want, n+b.kills()
			b.mu.Unlock()
		}
	}
	return want, n
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
GRANT EXECUTE ON FUNCTION stet.stet_begin, stet.stet_settle TO shop`

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
