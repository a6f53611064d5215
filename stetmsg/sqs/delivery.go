package sqs

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/stet-go/stet/stetmsg"
)

// delivery is a message in flight.
type delivery struct {
	r *Receiver
	m types.Message
}

// Deliveries implements stetmsg.Delivery.
func (d *delivery) Deliveries() int { return Deliveries(d.m) }

// Deliveries is how often SQS has delivered a message, approximately; 0 if it is unknown.
func Deliveries(m types.Message) int {
	n, _ := strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
	return max(n, 0)
}

// Ack implements stetmsg.Delivery.
func (d *delivery) Ack(ctx context.Context) error {
	_, err := d.r.o.Client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &d.r.o.QueueURL, ReceiptHandle: d.m.ReceiptHandle})
	return err
}

// Retry implements stetmsg.Delivery.
func (d *delivery) Retry(ctx context.Context, after time.Duration) error {
	_, err := d.r.o.Client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &d.r.o.QueueURL, ReceiptHandle: d.m.ReceiptHandle, VisibilityTimeout: seconds(after)})
	return err
}

// Extend implements stetmsg.Extender.
func (d *delivery) Extend(ctx context.Context) error { return d.Retry(ctx, d.r.o.Visibility) }

// ExtendEvery implements stetmsg.Extender.
func (d *delivery) ExtendEvery() time.Duration { return d.r.o.Visibility / 3 }

// maxAttributes is SQS's limit of attributes of a message.
const maxAttributes = 10

// DeadLetter implements stetmsg.Delivery. A message that has no room for two
// more attributes, or for their bytes, goes without the error's text, or without
// both.
func (d *delivery) DeadLetter(ctx context.Context, why stetmsg.Decision) error {
	attributes := maps.Clone(d.m.MessageAttributes)
	if attributes == nil {
		attributes = map[string]types.MessageAttributeValue{}
	}
	for _, a := range [][2]string{{ReasonAttribute, string(why.Reason)}, {ErrorAttribute, why.Text()}} {
		if len(attributes) < maxAttributes && a[1] != "" {
			attributes[a[0]] = text(a[1])
		}
	}
	in := &sqs.SendMessageInput{QueueUrl: &d.r.o.DeadLetterQueueURL, MessageBody: d.m.Body, MessageAttributes: attributes}
	if fifo(d.r.o.QueueURL) {
		in.MessageGroupId = aws.String(d.m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)])
		in.MessageDeduplicationId = d.m.MessageId // one dead letter for each message of the broker
	}
	for _, less := range []string{ErrorAttribute, ReasonAttribute, ""} {
		_, err := d.r.o.Client.SendMessage(ctx, in)
		if err == nil {
			return d.Ack(ctx)
		}
		if e, ok := errors.AsType[smithy.APIError](err); !ok || e.ErrorCode() != tooLarge || less == "" {
			return err
		}
		delete(attributes, less)
	}
	return nil // not reached: the last of them returns
}

// tooLarge is the code with which SQS refuses a message for its size, among other
// things.
const tooLarge = "InvalidParameterValue"

// Batch handles messages that AWS Lambda has received, up to the consumer's Concurrency at a
// time, and returns the IDs of the messages to deliver again: the function returns them as
// batchItemFailures (set ReportBatchItemFailures on the event source). They include dead
// letters, because a function cannot remove a message: the queue's redrive policy does, and
// until then they do not run again. With fifo, messages are handled one after the other, and
// messages behind the first that must be delivered again do not begin. SQS counts them as
// received, so Options.MaxAttempts is then left to the redrive policy.
func Batch(ctx context.Context, consumer *stetmsg.Consumer[types.Message], ms []types.Message, fifo bool) (failures []string) {
	failed := make([]bool, len(ms))
	handle := func(i int) {
		failed[i] = true // also if a handler calls runtime.Goexit
		deliveries := 0  // not known
		if !fifo {
			deliveries = Deliveries(ms[i])
		}
		failed[i] = consumer.Decide(ctx, ms[i], deliveries).Action != stetmsg.Ack
	}
	if fifo {
		for i := range ms {
			if i > 0 && failed[i-1] {
				failed[i] = true
				continue
			}
			handle(i)
		}
	} else {
		var wg sync.WaitGroup
		slots := make(chan struct{}, consumer.Concurrency())
		for i := range ms {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				handle(i)
			})
		}
		wg.Wait()
	}
	for i, m := range ms {
		if failed[i] {
			failures = append(failures, aws.ToString(m.MessageId))
		}
	}
	return failures
}
