package sqs

import (
	"context"
	"errors"
	"maps"
	"strconv"
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
func (d *delivery) Deliveries() int {
	n, _ := strconv.Atoi(d.m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
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
