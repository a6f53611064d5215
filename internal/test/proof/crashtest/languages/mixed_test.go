package languages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/store/postgres"
)

const queue = "payments"

// goPoints are where processes in Go die.
var goPoints = []fault.Point{fault.ClaimBefore, fault.HandlerBefore, fault.HandlerAfter, fault.SettleBefore, fault.SettleAfter,
	fault.CommitBefore, fault.CommitAfter, crashtest.Anywhere, crashtest.Anywhere}

// inGo is the service, or the consumer, if this process must be one.
func inGo() {
	if os.Getenv("LANGUAGES_BE") == "" {
		return
	}
	point, visit, _ := strings.Cut(os.Getenv("DIE"), ":")
	n, _ := strconv.Atoi(visit)
	var seen atomic.Int64
	fault.Set(func(p fault.Point) {
		if string(p) == point && seen.Add(1) == int64(n) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	})
	run := be
	if os.Getenv("LANGUAGES_BE") == "verified" {
		run = verified
	}
	if err := run(context.Background(), os.Getenv("LANGUAGES_BE")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func be(ctx context.Context, what string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	s, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		return err
	}
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		return err
	}
	te, err := stet.WithTx(engine, s)
	if err != nil {
		return err
	}
	if what == "consumer" {
		return consume(ctx, te)
	}
	return serve(te)
}

// paid is the business.
func paid(ctx context.Context, tx pgx.Tx, key, by string) (body string, err error) {
	var id int64
	err = tx.QueryRow(ctx, "INSERT INTO ledger (key, by) VALUES ($1, $2) RETURNING id", key, by).Scan(&id)
	return fmt.Sprintf(`{"payment": %d}`, id), err
}

func serve(te *stet.TxEngine[pgx.Tx]) error {
	m, err := stethttp.NewTx(te, stethttp.Options{Scope: func(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", m.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) {
		body, err := paid(r.Context(), tx, r.Header.Get("Idempotency-Key"), "go")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, body)
	}))
	server := &http.Server{Addr: "127.0.0.1:" + os.Getenv("PORT"), Handler: mux, ReadHeaderTimeout: time.Minute}
	fmt.Println("listening on http://" + server.Addr)
	return server.ListenAndServe()
}

// asPosted names the operation of a message as that of the same payment over HTTP.
func asPosted(m amqp091.Delivery) (stet.Op, error) {
	fp := stet.NewFingerprint([]byte("POST"), []byte("/payments"), []byte("application/json"), nil, m.Body)
	return stet.Op{Scope: "acct_1", Key: m.MessageId, Fingerprint: fp}, nil
}

func consume(ctx context.Context, te *stet.TxEngine[pgx.Tx]) error {
	o := stetmsg.Options[amqp091.Delivery]{Operation: asPosted, MaxAttempts: -1, Concurrency: 4,
		Backoff:  func(int) time.Duration { return time.Second },
		ErrorLog: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	consumer, err := stetmsg.NewTx(te, o, func(ctx context.Context, tx pgx.Tx, m amqp091.Delivery) ([]byte, error) {
		body, err := paid(ctx, tx, m.MessageId, "consumer")
		return []byte(body), err
	})
	if err != nil {
		return err
	}
	r, err := amqp.New(consumer, amqp.Options{URL: os.Getenv("BROKER"), Queue: queue, QueueType: "classic"})
	if err != nil {
		return err
	}
	fmt.Println("listening to " + queue)
	return r.Run(ctx)
}

// publisher publishes payments, each confirmed.
type publisher struct {
	mu sync.Mutex
	ch *amqp091.Channel
}

func newPublisher(t *testing.T, url string) *publisher {
	t.Helper()
	conn, err := amqp091.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err == nil {
		_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &publisher{ch: ch}
}

func (p *publisher) publish(ctx context.Context, key string) error {
	p.mu.Lock()
	sent, err := p.ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false,
		amqp091.Publishing{DeliveryMode: amqp091.Persistent, MessageId: key, ContentType: "application/json", Body: []byte(body(key))})
	p.mu.Unlock()
	if err != nil {
		return err
	}
	if ok, err := sent.WaitContext(ctx); err != nil || !ok {
		return errors.Join(err, errors.New("a message was not confirmed"))
	}
	return nil
}

// drained waits until no message is left, and returns how many are dead letters.
func (p *publisher) drained(ctx context.Context) (dead int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		left := 0
		for _, name := range []string{queue, queue + ".retry.1s"} {
			q, err := p.ch.QueueDeclarePassive(name, true, false, false, false, nil)
			if err != nil {
				return 0, fmt.Errorf("queue %s: %w", name, err)
			}
			left += q.Messages
		}
		if left == 0 {
			q, err := p.ch.QueueDeclarePassive(queue+".dead", true, false, false, false, nil)
			return q.Messages, err
		}
	}
	return 0, errors.Join(context.Cause(ctx), errors.New("messages are left"))
}

// One payment is posted to services in Go, Python and Node, and comes as a message, too.
// All are killed; each payment is made once, and each caller gets the same outcome.
func TestAllLanguagesTogetherPayOnce(t *testing.T) {
	s := newKiller(t)
	broker := rig.RabbitMQ(t)
	p := newPublisher(t, broker.URL())
	s.more = p.publish
	kills := newPlan(*serviceKills/2, points)
	of := func(l language, kind string) language { return language{l.name, []string{kind}, l.prepare} }
	lanes := append(s.services(t, of(python, "fastapi"), kills), s.services(t, of(node, "express"), kills)...)
	inGo := newPlan(*serviceKills-*serviceKills/2, goPoints)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"service", "consumer"} {
		l := language{"go", []string{kind}, func(*testing.T) func(string) child.Command {
			return func(string) child.Command {
				return foreign([]string{"LANGUAGES_BE=" + kind, "BROKER=" + broker.URL()}, program)
			}
		}}
		added := s.services(t, l, inGo)
		added[0].owner(s.url)
		if kind == "service" {
			lanes = append(lanes, added...)
		}
	}
	for _, l := range lanes {
		s.fronts = append(s.fronts, l.Addr)
	}
	s.after = func(ctx context.Context) error {
		dead, err := p.drained(ctx)
		if dead > 0 {
			err = errors.Join(err, fmt.Errorf("%d messages are dead letters", dead))
		}
		return err
	}
	pool, err := pgxpool.New(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	all := []string{"go", "python", "node", "consumer"}
	late := time.Now().Add(2 * patience)
	s.enough = func(ctx context.Context) bool { // on a busy machine one may begin only when the kills are done
		var paid int
		err := pool.QueryRow(ctx, "SELECT count(DISTINCT by) FROM ledger").Scan(&paid)
		return err == nil && paid == len(all) || time.Now().After(late)
	}
	s.during(t)
	v, by := s.judged(t)
	t.Logf("killed: %v", s.Tally().At)
	for _, who := range all {
		fmt.Printf("figure: mixed_by_%s = %d payments\n", who, by[who])
		if by[who] == 0 {
			t.Errorf("%s has made no payment", who)
		}
	}
	sum := total{kills: kills.kills + inGo.kills}
	sum.add(s, v)
	sum.print(t, "mixed")
}

// owner has the processes of a lane connect as the owner of the tables, as engines do.
func (l *lane) owner(url string) {
	command := l.command
	l.command = func(die string) child.Command {
		cmd := command(die)
		cmd.Env = append(cmd.Env, "DATABASE_URL="+url)
		return cmd
	}
}
