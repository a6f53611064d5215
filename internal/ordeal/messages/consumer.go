package messages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store/postgres"
)

// childEnv holds a child's order; without it the program is a parent.
const childEnv = "STET_ORDEAL_MESSAGES_CHILD"

// order tells a child what to do.
type order struct {
	Broker   string
	URL      string
	Postgres string
	Point    fault.Point // where to die; "" not at all
	Visit    int         // at which visit of it, from 1
}

// Main is called first by programs that use this package: in a child it consumes
// until it is killed or told to end, and does not return.
func Main() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		ctx, cancel := child.WithParent(context.Background(), os.Stdin)
		err = consume(ctx, o)
		cancel()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// consume receives until ctx ends.
func consume(ctx context.Context, o order) (err error) {
	var visits atomic.Int64
	pass := func(p fault.Point) {
		if p == o.Point && visits.Add(1) == int64(o.Visit) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way: not one step further
		}
	}
	fault.Set(pass)
	store, err := postgres.Open(ctx, o.Postgres+"&pool_max_conns=20", postgres.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	if o.Broker == "rabbitmq" {
		return consumeRabbitMQ(ctx, o, engine, store, pass)
	}
	return consumeNATS(ctx, o, engine, store, pass)
}

// newConsumer is the business: it makes a row, and fails now and then after it.
func newConsumer[M any](engine *stet.Engine, store *postgres.Store, envelope func(M) stetmsg.Envelope, pass func(fault.Point)) (*stetmsg.Consumer[M], error) {
	return stetmsg.NewTx(engine, store, stetmsg.Options[M]{
		Operation:   stetmsg.By(envelope, stetmsg.Header("orders", "message-id")),
		MaxAttempts: -1, // a message that was in hand at many kills is no poison
		Observe:     func(context.Context, stetmsg.Decision) { pass(told) },
	}, func(ctx context.Context, tx pgx.Tx, m M) ([]byte, error) {
		if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, stet.FromContext(ctx).Key()); err != nil {
			return nil, err
		}
		if rand.IntN(50) == 0 {
			return nil, errors.New("the warehouse did not answer")
		}
		return envelope(m).Body, nil
	})
}
