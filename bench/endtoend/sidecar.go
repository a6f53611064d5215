package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/bench/internal/cpu"
	"github.com/stet-go/stet/bench/internal/post"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/child"
)

// behindEnv has the order of a service behind a front.
const behindEnv = "STET_BENCH_ENDTOEND_BEHIND"

// way is a way from the callers to a service.
type way struct {
	name  string // in figures, and of the table of payments
	says  string // for people
	ours  bool   // replays stored outcomes
	kind  string // of the service: see serveBehind
	front func(ctx context.Context, s *sidecarPlace, service string) (*front, error)
}

const (
	paying   = "pays"    // INSERT
	settling = "settles" // BEGIN, INSERT, stet_settle, COMMIT
)

var ways = []way{
	{name: "direct", says: "no proxy", kind: paying},
	{name: "nginx", says: "nginx", kind: paying, front: func(ctx context.Context, s *sidecarPlace, service string) (*front, error) {
		return startNginx(ctx, s.files, service)
	}},
	{name: "go", says: "Go's httputil.ReverseProxy", kind: paying, front: func(ctx context.Context, s *sidecarPlace, service string) (*front, error) {
		return startGo(ctx, service)
	}},
	{name: "lease", says: "stet proxy", ours: true, kind: paying, front: func(ctx context.Context, s *sidecarPlace, service string) (*front, error) {
		return startStet(ctx, s.stet, s.files, s.postgres.URL(s.database), service, "")
	}},
	{name: "settles", says: "stet proxy, settles: service", ours: true, kind: settling, front: func(ctx context.Context, s *sidecarPlace, service string) (*front, error) {
		return startStet(ctx, s.stet, s.files, s.postgres.URL(s.database), service, ", settles: service")
	}},
}

// behind is the order of a service: its table is that of a way.
type behind struct {
	order
	Work string
}

// serveBehind serves payments behind a front.
func serveBehind(ctx context.Context, o behind) error {
	s, err := newService(ctx, o.order)
	if err != nil {
		return err
	}
	h := s.handle(false)
	if o.Work == settling {
		h = s.settle
	}
	return serveUntil(ctx, serveHTTP(h))
}

// settle pays and settles in one transaction, with the claim that the sidecar sends.
func (s *service) settle(w http.ResponseWriter, r *http.Request) {
	p, ok := decode(w, r)
	if !ok {
		return
	}
	var paid receipt
	err := pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) (err error) {
		if paid, err = s.insert(r.Context(), tx, r.Header.Get("Idempotency-Key"), p); err != nil {
			return err
		}
		b, err := json.Marshal(paid)
		if err == nil {
			_, err = tx.Exec(r.Context(), "SELECT stet.stet_settle($1, 201, NULL, 'application/json', $2)", r.Header.Get("Stet-Claim"), b)
		}
		return err
	})
	respond(w, paid, err)
}

// sidecarPlace is where the ways are measured.
type sidecarPlace struct {
	*place
	stet string // program
	ways []*wayCells
}

// wayCells is a way that runs.
type wayCells struct {
	way
	service *child.Process
	front   *front // nil: none
	firsts  atomic.Int64
	turn    atomic.Int64
}

func (w *wayCells) addr() string {
	if w.front == nil {
		return w.service.Addr
	}
	return w.front.addr
}

// spent is the processor time of a request, by process: front, service, PostgreSQL.
type spent [3]float64 // ms

// mainSidecar is the subcommand "sidecar": what a request costs with a reverse proxy, and with
// the sidecar in its place.
func mainSidecar(ctx context.Context, args []string) (err error) {
	s := settings{callers: []int{1, 16}, kept: 200}
	f := flag.NewFlagSet("sidecar", flag.ContinueOnError)
	f.DurationVar(&s.each, "each", 2*time.Second, "how long one measurement takes")
	f.IntVar(&s.rounds, "rounds", 7, "rounds that count")
	if err := f.Parse(args); err != nil {
		return err
	}
	p, err := newPlace(ctx, s)
	if err != nil {
		return err
	}
	place := &sidecarPlace{place: p}
	defer func() { err = errors.Join(err, place.close()) }()
	if err := place.start(ctx); err != nil {
		return err
	}
	for _, callers := range s.callers {
		for _, what := range []string{first, replay} {
			if err := place.compare(callers, what); err != nil {
				return err
			}
		}
	}
	return place.promises(ctx)
}

// start starts the ways.
func (s *sidecarPlace) start(ctx context.Context) (err error) {
	progress("building stet")
	if s.stet, err = buildStet(ctx, s.files); err != nil {
		return err
	}
	for _, w := range ways {
		table := "CREATE TABLE " + table(w.name) + " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, account text NOT NULL, amount bigint NOT NULL)"
		if _, err := s.pool.Exec(ctx, table); err != nil {
			return err
		}
		c := &wayCells{way: w}
		s.ways = append(s.ways, c)
		command, err := child.Order(behindEnv, behind{order{Kind: w.name, Postgres: s.postgres.URL(s.database)}, w.kind})
		if err != nil {
			return err
		}
		if c.service, err = child.Start(ctx, command); err != nil {
			return err
		}
		if w.front != nil {
			if c.front, err = w.front(ctx, s, c.service.Addr); err != nil {
				return err
			}
		}
		if _, _, err := s.load(c, 1, first, s.kept); err != nil { // of replays
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

func (s *sidecarPlace) close() error {
	for _, w := range s.ways {
		if w.front != nil {
			w.front.stop()
		}
		if w.service != nil {
			w.service.Kill()
		}
	}
	return s.place.close()
}

// compare measures all ways in turns.
func (s *sidecarPlace) compare(callers int, what string) error {
	progress("%d callers, %s requests", callers, what)
	costs := map[string][]spent{}
	var all []rounds.Contender
	for _, w := range s.ways {
		all = append(all, rounds.Contender{Name: w.name, Measure: func() (float64, error) {
			rate, cost, err := s.load(w, callers, what, 0)
			costs[w.name] = append(costs[w.name], cost)
			return rate, err
		}})
	}
	rates, err := rounds.Compare(s.rounds, all...)
	if err != nil {
		return err
	}
	for _, w := range s.ways {
		costs[w.name] = costs[w.name][1:] // the first round does not count
	}
	for _, w := range s.ways {
		s.show(w, what, callers, rates, costs)
	}
	return nil
}

// show prints a way at one setting.
func (s *sidecarPlace) show(w *wayCells, what string, callers int, rates map[string][]float64, costs map[string][]spent) {
	name := fmt.Sprintf("sidecar_%s_%s_%d", w.name, what, callers)
	var of spent
	for i := range of {
		of[i] = rounds.Median(column(costs[w.name], i))
	}
	ratio := rounds.Ratio(rates[w.name], rates["nginx"])
	fmt.Printf("%-30s %-6s %2d callers %7.0f/s (%.2f of nginx)  cpu a request: proxy %.3f, service %.3f, PostgreSQL %.3f ms\n",
		w.says, what, callers, rounds.Median(rates[w.name]), ratio, of[0], of[1], of[2])
	for i, process := range []string{"proxy", "service", "postgres"} {
		rounds.Figure(name+"_cpu_"+process, of[i], "ms")
	}
	rounds.Figure(name+"_rate", ratio, "of nginx")
	if !w.ours {
		return
	}
	own, nginx := column(costs[w.name], 0), column(costs["nginx"], 0)
	more := make([]float64, len(own))
	for i := range own {
		more[i] = own[i] - nginx[i]
	}
	rounds.Figure(name+"_cpu_more_than_nginx", rounds.Median(more), "ms")
	rounds.Figure(name+"_cpu_times_nginx", rounds.Ratio(own, nginx), "times")
}

// column returns the costs of one process.
func column(costs []spent, process int) (all []float64) {
	for _, c := range costs {
		all = append(all, c[process])
	}
	return all
}

// used is what the processes of a way have used so far.
func (s *sidecarPlace) used(w *wayCells) (u [3]time.Duration, err error) {
	all := [3][]int{nil, {w.service.PID()}, s.postgres.PIDs()}
	if w.front != nil {
		all[0] = w.front.pids()
	}
	for i, pids := range all {
		if u[i], err = cpu.Used(pids...); err != nil {
			return u, err
		}
	}
	return u, nil
}

// load sends requests for a while, or the first requests of so many old keys.
func (s *sidecarPlace) load(w *wayCells, callers int, what string, old int) (rate float64, cost spent, err error) {
	conns := make([]*post.Conn, callers)
	for i := range conns {
		if conns[i], err = post.Dial(w.addr()); err != nil {
			return 0, cost, err
		}
		defer conns[i].Close()
	}
	key := func() string { return fmt.Sprint(w.name, "-old-", w.turn.Add(1)%int64(s.kept)) }
	if what == first && old == 0 {
		key = func() string { return fmt.Sprint(w.name, "-new-", s.next.Add(1)) }
	}
	if old > 0 {
		for range old {
			if err := s.send(w, conns[0], key(), what); err != nil {
				return 0, cost, err
			}
		}
		return 0, cost, nil
	}
	before, err := s.used(w)
	if err != nil {
		return 0, cost, err
	}
	rate, took, err := rounds.Load(callers, s.each, func(caller int) error { return s.send(w, conns[caller], key(), what) })
	if err != nil {
		return 0, cost, err
	}
	after, err := s.used(w)
	for i := range cost {
		cost[i] = milliseconds(after[i]-before[i]) / float64(len(took))
	}
	return rate, cost, err
}

// send sends one request.
func (s *sidecarPlace) send(w *wayCells, conn *post.Conn, key, what string) error {
	status, content, err := conn.Post(path, key, "", body)
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", status, content)
	}
	if err == nil && (what == first || !w.ours) {
		w.firsts.Add(1)
	}
	return err
}

// promises returns an error if a sidecar's service has executed a key twice, or a request not.
func (s *sidecarPlace) promises(ctx context.Context) (err error) {
	for _, w := range s.ways {
		var rows, keys int64
		if err := s.pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT key) FROM "+table(w.name)).Scan(&rows, &keys); err != nil {
			return err
		}
		if w.ours && (rows != keys || rows != w.firsts.Load()) {
			err = errors.Join(err, fmt.Errorf("a promise is broken: behind %s, %d requests with %d different keys were executed; %d were sent", w.says, rows, keys, w.firsts.Load()))
		}
	}
	return err
}
