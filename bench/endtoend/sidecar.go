package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
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
		return s.startStet(ctx, service, "")
	}},
	{name: "settles", says: "stet proxy, settles: service", ours: true, kind: settling, front: func(ctx context.Context, s *sidecarPlace, service string) (*front, error) {
		return s.startStet(ctx, service, ", settles: service")
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
	stet  string // program
	ways  []*wayCells
	costs map[string]cost // by name of the figure
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

// spent is the processor time of a request in ms, by process: proxy, service, PostgreSQL.
type spent [3]float64

// cost is what a request costs in all rounds: medians.
type cost struct {
	spent
	more float64 // of the proxy's time than nginx's
}

// mainSidecar is the subcommand "sidecar": what a request costs with a reverse proxy, and with
// the sidecar in its place.
func mainSidecar(ctx context.Context, args []string) error {
	s := settings{callers: []int{1, 16}, kept: 200, load: loadAverage()}
	f := flag.NewFlagSet("sidecar", flag.ContinueOnError)
	f.DurationVar(&s.each, "each", time.Second, "how long one measurement takes")
	f.IntVar(&s.rounds, "rounds", 12, "rounds that count")
	f.StringVar(&s.docs, "docs", "", "folder of the documentation, whose table is written (default none)")
	if err := f.Parse(args); err != nil {
		return err
	}
	return s.sidecar(ctx, ways)
}

// sidecar measures ways, one of which is nginx.
func (s settings) sidecar(ctx context.Context, ways []way) (err error) {
	p, err := newPlace(ctx, s)
	if err != nil {
		return err
	}
	place := &sidecarPlace{place: p, costs: map[string]cost{}}
	defer func() { err = errors.Join(err, place.close()) }()
	for _, w := range ways {
		if err := place.start(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	for _, callers := range s.callers {
		for _, what := range []string{first, replay} {
			if err := place.compare(callers, what); err != nil {
				return err
			}
		}
	}
	if err := place.promises(ctx); err != nil || s.docs == "" {
		return err
	}
	return rewrite(filepath.Join(s.docs, "endtoend.md"), "sidecar", place.table())
}

// start starts a way, and makes the operations that its replays go round.
func (s *sidecarPlace) start(ctx context.Context, w way) error {
	progress("starting %s", w.says)
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
	conn, err := post.Dial(c.addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	for range s.kept {
		if err := s.send(c, conn, c.old(s.kept), first); err != nil {
			return err
		}
	}
	return nil
}

// old returns the next of so many keys that come again.
func (w *wayCells) old(kept int) string {
	return fmt.Sprint(w.name, "-old-", w.turn.Add(1)%int64(kept))
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
			rate, cost, err := s.measure(w, callers, what)
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
	name := costName(w.name, what, callers)
	var c cost
	for i := range c.spent {
		c.spent[i] = rounds.Median(column(costs[w.name], i))
	}
	fmt.Printf("%-30s %-6s %2d callers %7.0f/s  cpu a request: proxy %.3f, service %.3f, PostgreSQL %.3f ms\n",
		w.says, what, callers, rounds.Median(rates[w.name]), c.spent[0], c.spent[1], c.spent[2])
	for i, process := range []string{"proxy", "service", "postgres"} {
		rounds.Figure(name+"_cpu_"+process, c.spent[i], "ms")
	}
	if nginx := costs["nginx"]; w.ours && nginx != nil {
		own, beside := column(costs[w.name], 0), column(nginx, 0)
		more := make([]float64, len(own))
		for i := range own {
			more[i] = own[i] - beside[i]
		}
		c.more = rounds.Median(more)
		rounds.Figure(name+"_cpu_more_than_nginx", c.more, "ms")
		rounds.Figure(name+"_cpu_beside_nginx", rounds.Ratio(own, beside), "times")
		rounds.Figure(name+"_rate_beside_nginx", rounds.Ratio(rates[w.name], rates["nginx"]), "times")
	}
	s.costs[name] = c
}

func costName(way, what string, callers int) string {
	return fmt.Sprintf("sidecar_%s_%s_%d", way, what, callers)
}

// table is the table of docs/endtoend.md.
func (s *sidecarPlace) table() string {
	var t markdown
	fmt.Fprintf(&t, "%s Medians of %d rounds of %v, in which all take turns.\n\n", conditions(s.load), s.rounds, s.each)
	head := []string{"ms of processor time a request"}
	for _, what := range []string{first, replay} {
		for _, callers := range s.callers {
			head = append(head, fmt.Sprintf("%s, %d", what, callers))
		}
	}
	t.head(head...)
	row := func(says, way string, show func(cost) string) {
		cells := []string{says}
		for _, what := range []string{first, replay} {
			for _, callers := range s.callers {
				cells = append(cells, show(s.costs[costName(way, what, callers)]))
			}
		}
		t.row(cells...)
	}
	for _, w := range s.ways {
		row(w.says, w.name, func(c cost) string { return fmt.Sprintf("%.2f + %.2f + %.2f", c.spent[0], c.spent[1], c.spent[2]) })
	}
	for _, w := range s.ways {
		if w.ours {
			row(w.says+": the sidecar's more than nginx's", w.name, func(c cost) string { return fmt.Sprintf("%.2f", c.more) })
		}
	}
	return t.String()
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

// measure sends requests for a while.
func (s *sidecarPlace) measure(w *wayCells, callers int, what string) (rate float64, cost spent, err error) {
	conns := make([]*post.Conn, callers)
	for i := range conns {
		if conns[i], err = post.Dial(w.addr()); err != nil {
			return 0, cost, err
		}
		defer conns[i].Close()
	}
	key := func() string { return w.old(s.kept) }
	if what == first {
		key = func() string { return fmt.Sprint(w.name, "-new-", s.next.Add(1)) }
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
