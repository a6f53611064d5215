package kafka_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/kafka"
	"github.com/stet-go/stet/store/sqlite"
)

// mortal is a network that can be cut permanently, which is what the death of a
// process is to the brokers.
type mortal struct {
	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func (m *mortal) dial(ctx context.Context, network, host string) (net.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, errors.New("this process is dead")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, host)
	if err == nil {
		m.conns = append(m.conns, conn)
	}
	return conn, err
}

func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	for _, c := range m.conns {
		_ = c.Close()
	}
}

// forget removes the members of the group, as the brokers do without heartbeats of them
// for long enough.
func (f *fixture) forget() {
	f.t.Helper()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.Version = "workers", 4
	for _, m := range f.cluster.GroupInfo("workers").Members {
		req.Members = append(req.Members, kmsg.LeaveGroupRequestMember{MemberID: m.MemberID})
	}
	if _, err := req.RequestWith(f.t.Context(), f.client); err != nil {
		f.t.Fatal(err)
	}
}

// dead returns the first n dead letters.
func (f *fixture) dead(n int) (recs []*kgo.Record) {
	f.t.Helper()
	reader, err := kgo.NewClient(kgo.SeedBrokers(f.cluster.ListenAddrs()...), kgo.ConsumeTopics("dead"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer reader.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	for len(recs) < n && ctx.Err() == nil {
		reader.PollFetches(ctx).EachRecord(func(rec *kgo.Record) { recs = append(recs, rec) })
	}
	if len(recs) != n {
		f.t.Fatalf("%d dead letters, want %d", len(recs), n)
	}
	return recs
}

// process is a member of the group with a store of its own over the same file. It
// dies of the record "poison", and the record "stubborn" fails.
func (f *fixture) process(path string, attempts int, died chan<- struct{}, release <-chan struct{}) (stop func()) {
	f.t.Helper()
	network := new(mortal)
	store, err := sqlite.Open(f.t.Context(), path, sqlite.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	engine, err := stet.New(store, stet.Options{SweepEvery: -1})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := stetmsg.NewTx(stettest.TxEngine(engine, store), stetmsg.Options[*kgo.Record]{
		Operation: stetmsg.By(kafka.Envelope, stetmsg.Header("orders", "id")), MaxAttempts: attempts, ErrorLog: quiet,
	}, func(ctx context.Context, tx *sql.Tx, _ *kgo.Record) ([]byte, error) {
		key := stet.FromContext(ctx).Op().Key
		f.mu.Lock()
		f.ran = append(f.ran, key)
		f.mu.Unlock()
		switch key {
		case "poison":
			network.die()
			_ = tx.Rollback() // as the database does when its client is gone
			died <- struct{}{}
			<-release // and there is nothing to commit any more
		case "behind":
			died <- struct{}{}
		case "stubborn":
			died <- struct{}{}
			return nil, errors.New("a deadlock: the next try may work")
		}
		return nil, nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	r, err := kafka.New(c, kafka.Options{Client: []kgo.Opt{kgo.SeedBrokers(f.cluster.ListenAddrs()...), kgo.Dialer(network.dial)}, Group: "workers",
		Topics: []string{"orders"}, DeadLetterTopic: "dead"})
	if err != nil {
		f.t.Fatal(err)
	}
	end := f.run(r)
	return func() {
		end()
		_ = engine.Close()
		_ = store.Close()
	}
}

// In a transaction a run that dies leaves nothing in the store.
func TestRecordThatKillsItsProcessIsDeadLettered(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(t.TempDir(), "stet.db")
	f.publish(0, "a", "b", "poison", "behind")
	f.publish(1, "other")
	died, release := make(chan struct{}), make(chan struct{})
	var stops []func()
	defer func() {
		close(release)
		var wg sync.WaitGroup
		for _, stop := range stops { // the dead ones ask for long enough
			wg.Go(stop)
		}
		wg.Wait()
	}()
	const attempts = 3
	for process := 1; process <= attempts+1; process++ {
		stops = append(stops, f.process(path, attempts, died, release))
		select {
		case <-died:
		case <-time.After(patience):
			t.Fatalf("process %d has not come to its record; ran %v", process, f.ran)
		}
		if process <= attempts {
			f.forget()
		}
	}
	f.mu.Lock()
	ran := slices.DeleteFunc(slices.Clone(f.ran), func(key string) bool { return key == "other" }) // which may run at any time
	f.mu.Unlock()
	runs := len(slices.DeleteFunc(slices.Clone(ran), func(key string) bool { return key != "poison" }))
	if runs != attempts || ran[len(ran)-1] != "behind" {
		t.Errorf("ran %v", ran)
	}
	if reason, _ := kafka.Envelope(f.dead(1)[0]).Header(kafka.ReasonHeader); reason != string(stetmsg.Exhausted) {
		t.Errorf("the reason is %q", reason)
	}
}

func TestTooLargeDeadLetterIsShortened(t *testing.T) {
	f := newFixture(t)
	producer, err := kgo.NewClient(kgo.SeedBrokers(f.cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	topic := kmsg.NewPtrIncrementalAlterConfigsRequest()
	for name, limit := range map[string]string{"orders": "8388608", "dead": "3000000"} {
		topic.Resources = append(topic.Resources, kmsg.IncrementalAlterConfigsRequestResource{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: name,
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "max.message.bytes", Value: &limit}}})
	}
	if resp, err := topic.RequestWith(t.Context(), producer); err != nil || resp.Resources[0].ErrorCode != 0 {
		t.Fatal(resp, err)
	}
	noise := func(n int) []byte { // that does not compress
		b := make([]byte, 0, n)
		for len(b) < n {
			b = append(b, stet.NewKey()...)
		}
		return b[:n]
	}
	sizes := []int{1_500_000, 2_999_000, 5_000_000} // more than a producer's default; with room for a reason; too large
	bodies := make([][]byte, len(sizes))
	for i, n := range sizes {
		bodies[i] = noise(n)
		rec := &kgo.Record{Topic: "orders", Value: bodies[i], Headers: []kgo.RecordHeader{{Key: "id", Value: []byte{'a' + byte(i)}}}}
		if err := producer.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	key := &kgo.Record{Topic: "orders", Key: noise(3_500_000), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("d")}}}
	if err := producer.ProduceSync(t.Context(), key).FirstErr(); err != nil {
		t.Fatal(err)
	}
	f.publish(0, "good")
	stop := f.run(f.receiver(func(_ context.Context, key string) error {
		if key == "good" {
			return nil
		}
		return errors.New(string(bytes.Repeat([]byte("no such book "), 100)))
	}))
	defer stop()
	f.until(func(ran []string) bool { return slices.Contains(ran, "good") })
	stop()
	for i, rec := range f.dead(len(sizes) + 1) {
		e := kafka.Envelope(rec)
		if i == len(sizes) {
			if omitted, _ := e.Header(kafka.OmittedHeader); omitted != "key, value" || rec.Key != nil {
				t.Errorf("of the one with a large key %q was left out", omitted)
			}
			continue
		}
		_, said := e.Header(kafka.ErrorHeader)
		_, omitted := e.Header(kafka.OmittedHeader)
		if origin, _ := e.Header(kafka.OriginHeader); origin != "orders/0/"+string('0'+rune(i)) {
			t.Errorf("%d: its origin is %q", i, origin)
		}
		if whole := bytes.Equal(rec.Value, bodies[i]); whole != (i < 2) || omitted == whole {
			t.Errorf("%d: %d bytes, omitted %v", i, len(rec.Value), omitted)
		}
		if i == 0 && !said {
			t.Error("the error was left out where it has room")
		}
	}
}

// Members that end in order say so; a record that comes next, and kills, is counted
// all the same.
func TestRecordThatKillsLaterMembersIsDeadLettered(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(t.TempDir(), "stet.db")
	died, release := make(chan struct{}), make(chan struct{})
	var stops []func()
	defer func() {
		close(release)
		var wg sync.WaitGroup
		for _, stop := range stops {
			wg.Go(stop)
		}
		wg.Wait()
	}()
	const attempts = 2
	f.publish(0, "behind")
	orderly := f.process(path, attempts, died, release)
	<-died
	orderly()
	f.publish(0, "poison")
	for process := 1; process <= attempts+1; process++ {
		stops = append(stops, f.process(path, attempts, died, release))
		if process > attempts {
			break
		}
		select {
		case <-died:
		case <-time.After(patience):
			t.Fatalf("process %d has not come to its record; ran %v", process, f.ran)
		}
		f.forget()
	}
	dead := make(chan *kgo.Record, 1)
	go func() { dead <- f.dead(1)[0] }()
	select {
	case rec := <-dead:
		if reason, _ := kafka.Envelope(rec).Header(kafka.ReasonHeader); reason != string(stetmsg.Exhausted) {
			t.Errorf("the reason is %q", reason)
		}
	case <-died:
		t.Fatalf("it kills permanently; ran %v", f.ran)
	}
}

// A member that ends in order while a record waits for its next attempt did not die
// of it.
func TestShutdownsUseNoAttempts(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(t.TempDir(), "stet.db")
	died := make(chan struct{})
	f.publish(0, "stubborn")
	const attempts = 2
	for member := range attempts + 2 {
		stop := f.process(path, attempts, died, nil)
		select {
		case <-died:
		case <-time.After(patience):
			stop()
			t.Fatalf("member %d has not run it; ran %v", member, f.ran)
		}
		stop()
	}
}
