package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetmsg/sqs"
	"github.com/stet-go/stet/store/memory"
)

// These tests run on ElasticMQ. It keeps the order of a FIFO group while a message of the group is retried; the
// server of moto 5.2 does not.

// newElasticMQ makes a fixture over ElasticMQ.
func newElasticMQ(t *testing.T) *fixture {
	t.Helper()
	url := rig.ElasticMQ(t).URL()
	client := awssqs.New(awssqs.Options{Region: "elasticmq", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
	return &fixture{t: t, client: client, engine: stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})}
}

// create makes a queue with attributes, and returns its URL and its ARN.
func (f *fixture) create(suffix string, attributes ...string) (url, arn string) {
	f.t.Helper()
	name := rig.Named(f.t, "-")
	name = "orders" + name[strings.LastIndexByte(name, '-'):] // at most 80 bytes
	in := &awssqs.CreateQueueInput{QueueName: aws.String(name + suffix), Attributes: map[string]string{}}
	for i := 0; i < len(attributes); i += 2 {
		in.Attributes[attributes[i]] = attributes[i+1]
	}
	out, err := f.client.CreateQueue(f.t.Context(), in)
	if err != nil {
		f.t.Fatal(err)
	}
	return *out.QueueUrl, f.attribute(*out.QueueUrl, types.QueueAttributeNameQueueArn)
}

func (f *fixture) attribute(url string, name types.QueueAttributeName) string {
	f.t.Helper()
	out, err := f.client.GetQueueAttributes(f.t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		f.t.Fatal(err)
	}
	return out.Attributes[string(name)]
}

// left is how many messages a queue has, also those in flight.
func (f *fixture) left(url string) (n int) {
	f.t.Helper()
	for _, name := range []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible} {
		k, err := strconv.Atoi(f.attribute(url, name))
		if err != nil {
			f.t.Fatal(err)
		}
		n += k
	}
	return n
}

// start starts a receiver.
func (f *fixture) start(o sqs.Options, h func(context.Context, string) error) (stop func()) {
	f.t.Helper()
	if o.Client == nil {
		o.Client = f.client
	}
	r, err := sqs.New(f.consumer(h), o)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
}

// until waits until done.
func (f *fixture) until(what string, done func() bool) {
	f.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.t.Fatalf("timed out until %s; ran %v", what, f.ran)
		}
	}
}

// sorted is the keys of the runs.
func (f *fixture) sorted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(slices.Values(f.ran))
}

func TestElasticMQ_CopiesRunOnce(t *testing.T) {
	t.Parallel()
	f := newElasticMQ(t)
	queue, _ := f.create("")
	dead, _ := f.create("-dead")
	const n = 20
	var want []string
	for i := range n {
		key := fmt.Sprint(100 + i)
		want = append(want, key)
		f.send(queue, "", key, key, key)
	}
	for range 2 {
		defer f.start(sqs.Options{QueueURL: queue, DeadLetterQueueURL: dead}, ok)()
	}
	f.until("the queue is empty", func() bool { return f.left(queue) == 0 })
	if got := f.sorted(); !slices.Equal(got, want) || f.left(dead) != 0 {
		t.Errorf("ran %v, and there are %d dead letters", got, f.left(dead))
	}
}

func TestElasticMQ_FIFOGroupKeepsItsOrderDuringARetry(t *testing.T) {
	t.Parallel()
	f := newElasticMQ(t)
	queue, _ := f.create(".fifo", "FifoQueue", "true")
	dead, _ := f.create("-dead.fifo", "FifoQueue", "true")
	for i, key := range []string{"a", "b", "b", "c", "bad", "d"} {
		if _, err := f.client.SendMessage(t.Context(), &awssqs.SendMessageInput{QueueUrl: &queue, MessageBody: aws.String("five books"), MessageGroupId: aws.String("g"),
			MessageDeduplicationId: aws.String(fmt.Sprint(i)), MessageAttributes: map[string]types.MessageAttributeValue{"id": text(key)}}); err != nil {
			t.Fatal(err)
		}
	}
	var tries sync.Map
	stop := f.start(sqs.Options{QueueURL: queue, DeadLetterQueueURL: dead}, func(_ context.Context, key string) error {
		if key == "bad" {
			return errors.New("no such book")
		}
		if _, again := tries.LoadOrStore(key, true); !again {
			return stet.Retryable(errors.New("busy"))
		}
		return nil
	})
	defer stop()
	f.until("the queue is empty", func() bool { return f.left(queue) == 0 })
	stop()
	if !slices.Equal(f.ran, []string{"a", "b", "c", "d"}) || f.left(dead) != 1 {
		t.Errorf("ran %v, and there are %d dead letters", f.ran, f.left(dead))
	}
}

// unextended is a client that loses the calls ChangeMessageVisibility and DeleteMessage until it is
// healed.
type unextended struct {
	sqs.API
	mu     sync.Mutex
	healed bool
}

var errLost = errors.New("the request was lost")

func (u *unextended) lost() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.healed {
		return nil
	}
	return errLost
}

func (u *unextended) heal() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.healed = true
}

func (u *unextended) ChangeMessageVisibility(ctx context.Context, in *awssqs.ChangeMessageVisibilityInput, o ...func(*awssqs.Options)) (*awssqs.ChangeMessageVisibilityOutput, error) {
	if err := u.lost(); err != nil {
		return nil, err
	}
	return u.API.ChangeMessageVisibility(ctx, in, o...)
}

func (u *unextended) DeleteMessage(ctx context.Context, in *awssqs.DeleteMessageInput, o ...func(*awssqs.Options)) (*awssqs.DeleteMessageOutput, error) {
	if err := u.lost(); err != nil {
		return nil, err
	}
	return u.API.DeleteMessage(ctx, in, o...)
}

// counted is a client that counts received messages.
type counted struct {
	sqs.API
	mu sync.Mutex
	n  int
}

func (c *counted) ReceiveMessage(ctx context.Context, in *awssqs.ReceiveMessageInput, o ...func(*awssqs.Options)) (*awssqs.ReceiveMessageOutput, error) {
	out, err := c.API.ReceiveMessage(ctx, in, o...)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n += len(out.Messages)
	}
	return out, err
}

func (c *counted) received() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func TestElasticMQ_VisibilityThatEndsDuringARunRunsNothingTwice(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", ".fifo"} {
		t.Run("queue"+suffix, func(t *testing.T) {
			t.Parallel()
			f := newElasticMQ(t)
			var kind []string
			group := ""
			if suffix != "" {
				kind, group = []string{"FifoQueue", "true", "ContentBasedDeduplication", "true"}, "g"
			}
			queue, _ := f.create(suffix, kind...)
			dead, _ := f.create("-dead"+suffix, kind...)
			begun, release := make(chan struct{}, 2), make(chan struct{})
			h := func(context.Context, string) error {
				begun <- struct{}{}
				<-release
				return nil
			}
			f.send(queue, group, "1")
			first := f.start(sqs.Options{Client: &unextended{API: f.client}, QueueURL: queue, DeadLetterQueueURL: dead, Visibility: 3 * time.Second, Prefetch: 1}, h)
			defer first()
			<-begun
			other := &counted{API: f.client}
			second := f.start(sqs.Options{Client: other, QueueURL: queue, DeadLetterQueueURL: dead, Visibility: 3 * time.Second}, h)
			defer second()
			f.until("the second receiver has the message", func() bool { return other.received() > 0 })
			close(release)
			first()
			f.until("the queue is empty", func() bool { return f.left(queue) == 0 })
			if got := f.sorted(); !slices.Equal(got, []string{"1"}) || f.left(dead) != 0 {
				t.Errorf("ran %v, and there are %d dead letters", got, f.left(dead))
			}
		})
	}
}

// The broker moves a message whose deletions are lost to its own dead-letter queue. An operator moves it back.
func TestElasticMQ_RedrivenMessageRunsOnce(t *testing.T) {
	t.Parallel()
	f := newElasticMQ(t)
	moved, arn := f.create("-moved")
	queue, _ := f.create("", "RedrivePolicy", `{"deadLetterTargetArn":"`+arn+`","maxReceiveCount":"2"}`)
	dead, _ := f.create("-dead")
	f.send(queue, "", "1")
	client := &unextended{API: f.client}
	defer f.start(sqs.Options{Client: client, QueueURL: queue, DeadLetterQueueURL: dead, Visibility: 3 * time.Second}, ok)()
	f.until("the broker has moved the message", func() bool { return f.left(moved) == 1 && f.left(queue) == 0 })
	client.heal()
	if _, err := f.client.StartMessageMoveTask(t.Context(), &awssqs.StartMessageMoveTaskInput{SourceArn: &arn}); err != nil {
		t.Fatal(err)
	}
	f.until("the message is moved back and acknowledged", func() bool { return f.left(moved) == 0 && f.left(queue) == 0 })
	f.send(queue, "", "2")
	f.until("the next message has run", func() bool { return slices.Contains(f.sorted(), "2") })
	if got := f.sorted(); !slices.Equal(got, []string{"1", "2"}) || f.left(dead) != 0 {
		t.Errorf("ran %v, and there are %d dead letters", got, f.left(dead))
	}
}
