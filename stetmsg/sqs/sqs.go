// Package sqs receives messages from Amazon SQS for a stetmsg.Consumer.
//
// The visibility timeout of a message is extended while it is in flight, and set to the delay
// of a message that must wait. A dead letter is sent to another queue, with the reason in its
// attributes, before the original is deleted. Give the queue itself no redrive policy, or one
// with a higher count than stetmsg.Options.MaxAttempts.
//
// In a FIFO queue (its name ends in .fifo) the messages of a group are handled one after the
// other, and received one by one: SQS counts all messages of a batch as received, so messages
// behind a waiting one would use up their attempts without a run.
//
// If AWS Lambda receives the messages, see package stetlambda. The tests run on ElasticMQ, and on a small
// stand-in for faults of the service.
package sqs

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/internal/receiver"
)

// Attributes of a dead letter: the reason, and the text of the error.
const (
	ReasonAttribute = "stet-reason"
	ErrorAttribute  = "stet-error"
)

const (
	// DefaultVisibility is the default of Options.Visibility.
	DefaultVisibility = 60 * time.Second
	// MaxVisibility is SQS's limit, and so of how long a message waits.
	MaxVisibility = 12 * time.Hour

	maxReceive  = 10 // messages in one call
	receiveWait = 2 * time.Second
	answerWait  = 30 * time.Second // beyond that, for an answer
	fifoCalls   = 4                // at a time, for one message each
)

// API is the used part of SQS. *sqs.Client implements it.
type API interface {
	ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	DeleteMessage(context.Context, *sqs.DeleteMessageInput, ...func(*sqs.Options)) (*sqs.DeleteMessageOutput, error)
	ChangeMessageVisibility(context.Context, *sqs.ChangeMessageVisibilityInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityOutput, error)
	SendMessage(context.Context, *sqs.SendMessageInput, ...func(*sqs.Options)) (*sqs.SendMessageOutput, error)
}

// Options configure a Receiver. Client and the two URLs are required.
type Options struct {
	Client             API
	QueueURL           string
	DeadLetterQueueURL string // of a FIFO queue a FIFO queue
	// Visibility is the visibility timeout. It is extended at each third of it. 3 s to MaxVisibility. Default
	// DefaultVisibility.
	Visibility time.Duration
	// Prefetch is how many messages are in flight at most. Default: twice the
	// consumer's Concurrency.
	Prefetch int
}

// Receiver passes the messages of a queue to a consumer.
type Receiver struct {
	consumer *stetmsg.Consumer[types.Message]
	o        Options
}

// New returns a receiver. Wrong options are errors of kind stet.KindInvalid.
func New(consumer *stetmsg.Consumer[types.Message], o Options) (*Receiver, error) {
	o.Visibility = cmp.Or(o.Visibility, DefaultVisibility)
	switch {
	case consumer == nil:
		return nil, misuse.Errorf("stetmsg/sqs: New needs a consumer; stetmsg.New makes one")
	case o.Client == nil || o.QueueURL == "" || o.DeadLetterQueueURL == "":
		return nil, misuse.Errorf("stetmsg/sqs: Options need a Client, a QueueURL and a DeadLetterQueueURL")
	case o.QueueURL == o.DeadLetterQueueURL:
		return nil, misuse.Errorf("stetmsg/sqs: Options.DeadLetterQueueURL is the QueueURL: dead letters would be received again")
	case fifo(o.QueueURL) != fifo(o.DeadLetterQueueURL):
		return nil, misuse.Errorf("stetmsg/sqs: Options: the queue and the dead-letter queue must both be FIFO queues, or neither")
	case o.Visibility < 3*time.Second || o.Visibility > MaxVisibility:
		return nil, misuse.Errorf("stetmsg/sqs: Options.Visibility is %v; it must be 3s to %v", o.Visibility, MaxVisibility)
	case o.Prefetch < 0:
		return nil, misuse.Errorf("stetmsg/sqs: Options.Prefetch is negative: %d", o.Prefetch)
	}
	o.Prefetch = cmp.Or(o.Prefetch, 2*consumer.Concurrency())
	return &Receiver{consumer: consumer, o: o}, nil
}

func fifo(url string) bool { return strings.HasSuffix(url, ".fifo") }

// Run receives until ctx ends. Then it stops receiving, releases messages that have not begun,
// waits for running ones, and returns nil. It retries failed calls.
func (r *Receiver) Run(ctx context.Context) error {
	pool := receiver.NewPool(r.o.Prefetch, r.o.Prefetch) // Handle extends waiting messages
	defer pool.Wait()
	calls, most := 1, min(maxReceive, r.o.Prefetch)
	if fifo(r.o.QueueURL) {
		calls, most = min(fifoCalls, r.o.Prefetch), 1
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for range calls {
		wg.Go(func() {
			var pause receiver.Pause
			for pool.Reserve(ctx, most) { // received messages are extended at once
				if err := r.receive(ctx, pool, most); err != nil {
					pause.Wait(ctx, r.consumer.Log(), err)
					continue
				}
				pause.Reset()
			}
		})
	}
	return nil
}

// receive makes one call, for which slots are reserved. The end of ctx does not interrupt it:
// received messages would stay invisible until their visibility timeout.
func (r *Receiver) receive(ctx context.Context, pool *receiver.Pool, most int) error {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), receiveWait+answerWait)
	defer cancel()
	out, err := r.o.Client.ReceiveMessage(within, &sqs.ReceiveMessageInput{
		QueueUrl: &r.o.QueueURL, MaxNumberOfMessages: int32(most), WaitTimeSeconds: int32(receiveWait / time.Second),
		VisibilityTimeout: seconds(r.o.Visibility), MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil {
		pool.Release(most)
		return err
	}
	for _, m := range out.Messages {
		d := &delivery{r: r, m: m}
		// Handle has logged the error. While a message of a group is in flight, SQS returns
		// no other of that group.
		pool.Run(func() { _, _ = r.consumer.Handle(ctx, m, d) })
	}
	pool.Release(most - len(out.Messages))
	return nil
}

// seconds rounds up, because a message must not be delivered early.
func seconds(d time.Duration) int32 {
	return int32((max(0, min(d, MaxVisibility)) + time.Second - 1) / time.Second)
}

// Envelope returns the attributes of a message, and its system attributes such as
// MessageDeduplicationId.
func Envelope(m types.Message) stetmsg.Envelope {
	get := func(name string) (string, bool) {
		if a, ok := m.MessageAttributes[name]; ok && a.StringValue != nil {
			return *a.StringValue, true
		}
		v, ok := m.Attributes[name]
		return v, ok
	}
	contentType, _ := get("content-type")
	names := func() []string {
		return slices.AppendSeq(slices.Collect(maps.Keys(m.Attributes)), maps.Keys(m.MessageAttributes))
	}
	return stetmsg.Envelope{Header: get, Names: names, ContentType: contentType, Body: []byte(aws.ToString(m.Body))}
}

// Part returns m with another body, for cloudevents.Split.
func Part(m types.Message, contentType string, body []byte) types.Message {
	attributes := map[string]types.MessageAttributeValue{}
	maps.Copy(attributes, m.MessageAttributes)
	attributes["content-type"] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &contentType}
	m.MessageAttributes, m.Body = attributes, aws.String(string(body))
	return m
}
