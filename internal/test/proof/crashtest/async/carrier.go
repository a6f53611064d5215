package async

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/amqp"
	"github.com/stet-go/stet/stetmsg/jetstream"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/stetwork/broker"
	stetriver "github.com/stet-go/stet/stetwork/river"
)

// The names of what the brokers have.
const (
	workQueue = "work" // also the stream and its subject
	deadQueue = "dead"
)

// carrier is a process's part in carrying operations to workers.
type carrier struct {
	prepare func(http.ResponseWriter, *http.Request) (stet.Work, bool)
	runs    []func(context.Context) error // besides the worker
	close   func()
}

// connect makes the carrier of the process, and its worker, if it is to have one.
func (p *process) connect(ctx context.Context) (*carrier, error) {
	switch p.flavour.queue {
	case byRiver:
		return p.connectRiver()
	case byRabbitMQ:
		return p.connectRabbitMQ()
	case byJetStream:
		return p.connectJetStream(ctx)
	}
	w, err := p.newWorker(nil)
	p.worker = w
	return &carrier{close: func() {}}, err
}

// connectRiver makes the API insert jobs in the transaction of the acceptance, or
// pass its accepted operations, and the worker work them.
func (p *process) connectRiver() (*carrier, error) {
	c := &carrier{close: func() {}}
	inserts, err := river.NewClient(riverpgxv5.New(p.site.Postgres.Pool()), &river.Config{Logger: p.log})
	if err != nil {
		return nil, err
	}
	queue, err := stetriver.New(inserts, stetriver.Options{})
	if err != nil {
		return nil, err
	}
	if p.Role == serves {
		c.prepare = p.orders(inserts)
		if p.flavour.dispatches() {
			return c, p.dispatches(c, p.queue(queue))
		}
		return c, nil
	}
	if p.worker, err = p.newWorker(p.queue(queue)); err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	if err := stetriver.AddWorker(workers, p.worker); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(p.site.Postgres.Pool()), &river.Config{Logger: p.log, Workers: workers, FetchPollInterval: poll,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: p.worker.Concurrency()}}})
	if err != nil {
		return nil, err
	}
	c.runs = append(c.runs, func(ctx context.Context) error {
		if err := client.Start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return client.Stop(stop)
	})
	return c, nil
}

// orders prepares work in a transaction: it makes the service's own row, and the
// job, as Queue.AcceptTx of stetwork/river does, unless it must be dispatched. Both are undone if the
// operation stands already.
func (p *process) orders(inserts *river.Client[pgx.Tx]) func(http.ResponseWriter, *http.Request) (stet.Work, bool) {
	return func(w http.ResponseWriter, r *http.Request) (stet.Work, bool) {
		ctx := r.Context()
		key, err := strconv.Unquote(r.Header.Get(stethttp.DefaultHeader))
		scope, _ := stethttp.SingleTenant(r)
		var j job
		if err == nil {
			j.Key = key
			err = p.site.Have(ctx, crashtest.Effect{Charge: crashtest.Charge{ID: stet.NewKey(), Scope: scope, Key: key}, Part: ordered})
		}
		if err == nil && !p.flavour.dispatched {
			args := stetriver.Args{ID: p.engine.ID(scope, key).String(), Name: strings.TrimPrefix(r.URL.Path, orderPath)}
			_, err = inserts.InsertTx(ctx, stethttp.Tx[pgx.Tx](ctx), args, nil)
		}
		work, encoding := stetwork.NewWork(strings.TrimPrefix(r.URL.Path, orderPath), j)
		if err != nil || encoding != nil {
			http.Error(w, "the order cannot be kept", http.StatusServiceUnavailable)
			return work, false
		}
		return work, true
	}
}

// dispatches makes a process that only accepts pass its operations.
func (p *process) dispatches(c *carrier, q stetwork.Queue) error {
	d, err := stetwork.NewDispatcher(p.engine, q, p.dispatch())
	if err == nil {
		c.runs = append(c.runs, d.Run)
	}
	return err
}

func (p *process) consumerOptions() broker.ConsumerOptions {
	return broker.ConsumerOptions{Observe: func(context.Context, stetmsg.Decision) { p.shop.pass(told) }}
}

func toWork(stet.Item) string { return workQueue }

func (p *process) connectRabbitMQ() (*carrier, error) {
	publisher, err := amqp.NewPublisher(amqp.PublisherOptions{URL: p.Broker})
	if err != nil {
		return nil, err
	}
	c := &carrier{close: func() { _ = publisher.Close() }}
	queue, err := broker.NewQueue(publisher.Publish, toWork)
	if err != nil {
		return nil, err
	}
	if p.Role == serves {
		return c, p.dispatches(c, p.queue(queue))
	}
	if p.worker, err = p.newWorker(p.queue(queue)); err != nil {
		return nil, err
	}
	consumer, err := broker.NewConsumer(p.worker, amqp.Envelope, p.consumerOptions())
	if err != nil {
		return nil, err
	}
	receiver, err := amqp.New(consumer, amqp.Options{URL: p.Broker, Queue: workQueue})
	if err != nil {
		return nil, err
	}
	c.runs = append(c.runs, receiver.Run)
	return c, nil
}

func (p *process) connectJetStream(ctx context.Context) (*carrier, error) {
	nc, jet, err := crashtest.DialNATS(p.Broker)
	if err != nil {
		return nil, err
	}
	c := &carrier{close: nc.Close}
	queue, err := broker.NewQueue(jetstream.Publisher(jet), toWork)
	if err != nil {
		return nil, err
	}
	if p.Role == serves {
		return c, p.dispatches(c, p.queue(queue))
	}
	if p.worker, err = p.newWorker(p.queue(queue)); err != nil {
		return nil, err
	}
	workers, err := jet.Consumer(ctx, workQueue, crashtest.Durable)
	if err != nil {
		return nil, err
	}
	consumer, err := broker.NewConsumer(p.worker, jetstream.Envelope, p.consumerOptions())
	if err != nil {
		return nil, err
	}
	receiver, err := jetstream.New(ctx, consumer, jetstream.Options{JetStream: jet, Consumer: workers, DeadLetterSubject: deadQueue})
	if err != nil {
		return nil, err
	}
	c.runs = append(c.runs, receiver.Run)
	return c, nil
}
