package async

import (
	"context"
	"errors"
	"os"
	"time"

	js "github.com/nats-io/nats.go/jetstream"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/internal/rig"
)

// servers are those that a flavour needs.
type servers struct {
	place   place
	restart func(context.Context) error // of what carries the work; nil: nothing does but the store
	closers []func() error
}

// startServers starts them, on r, and makes what they are to have.
func startServers(ctx context.Context, r *rig.Rig, f flavour, keep string) (*servers, error) {
	s := &servers{}
	dir, err := os.MkdirTemp(keep, "ordeal-async-")
	if err != nil {
		return nil, err
	}
	s.place.Dir = dir
	if keep == "" {
		s.closers = append(s.closers, func() error { return os.RemoveAll(dir) })
	}
	err = s.startStore(ctx, r, f)
	if err == nil {
		err = s.startQueue(ctx, r, f)
	}
	if err == nil {
		err = s.place.prepare(ctx, f)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *servers) close() (err error) {
	for _, c := range s.closers {
		err = errors.Join(err, c())
	}
	return err
}

func (s *servers) startStore(ctx context.Context, r *rig.Rig, f flavour) error {
	switch f.store {
	case inPostgres:
		server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
		if err != nil {
			return err
		}
		s.closers = append(s.closers, server.Close)
		s.place.Postgres = server.URL("postgres")
		if f.queue == byRiver {
			s.restart = func(ctx context.Context) error { return errors.Join(server.Kill(), server.Start(ctx)) }
		}
	case inRedis:
		server, err := r.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}})
		if err != nil {
			return err
		}
		s.closers = append(s.closers, server.Close)
		s.place.Redis = server.Addr()
	}
	return nil
}

func (s *servers) startQueue(ctx context.Context, r *rig.Rig, f flavour) error {
	switch f.queue {
	case byRabbitMQ:
		server, err := startRabbitMQ(ctx, r)
		if err != nil {
			return err
		}
		s.closers = append(s.closers, server.Close)
		s.place.Broker = server.URL()
		// Properly: of a quorum queue, RabbitMQ 3.10 on one node may find no
		// leader after SIGKILL.
		s.restart = server.Restart
	case byJetStream:
		server, err := startNATS(ctx, r)
		if err != nil {
			return err
		}
		s.closers = append(s.closers, server.Close)
		s.place.Broker = server.URL()
		s.restart = func(ctx context.Context) error { return errors.Join(server.Kill(), server.Start(ctx)) }
	}
	return nil
}

func startRabbitMQ(ctx context.Context, r *rig.Rig) (*rig.RabbitMQServer, error) {
	server, err := r.StartRabbitMQ(ctx, rig.RabbitMQOptions{})
	if err != nil {
		return nil, err
	}
	conn, err := amqp091.Dial(server.URL())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	_, err = ch.QueueDeclare(workQueue, true, false, false, false, nil)
	return server, err
}

func startNATS(ctx context.Context, r *rig.Rig) (*rig.NATSServer, error) {
	server, err := r.StartNATS(ctx)
	if err != nil {
		return nil, err
	}
	nc, jet, err := dialNATS(server.URL())
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	// By limits, not as a work queue: see internal/ordeal/messages.
	if _, err = jet.CreateStream(ctx, js.StreamConfig{Name: workQueue, Subjects: []string{workQueue}}); err != nil {
		return nil, err
	}
	if _, err = jet.CreateStream(ctx, js.StreamConfig{Name: deadQueue, Subjects: []string{deadQueue}}); err != nil {
		return nil, err
	}
	_, err = jet.CreateConsumer(ctx, workQueue, js.ConsumerConfig{Durable: durable, AckPolicy: js.AckExplicitPolicy, AckWait: 3 * time.Second})
	return server, err
}
