package sqs_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg/sqs"
	"github.com/stet-go/stet/store/memory"
)

// silent has one message, and leaves all calls but the second without an answer.
type silent struct {
	sqs.API
	calls   int
	deleted chan struct{}
}

func (s *silent) ReceiveMessage(ctx context.Context, _ *awssqs.ReceiveMessageInput, _ ...func(*awssqs.Options)) (*awssqs.ReceiveMessageOutput, error) {
	if s.calls++; s.calls == 2 {
		return &awssqs.ReceiveMessageOutput{Messages: []types.Message{{MessageId: aws.String("1"), ReceiptHandle: aws.String("1"), Body: aws.String("five books"),
			MessageAttributes: map[string]types.MessageAttributeValue{"id": text("1")}}}}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *silent) DeleteMessage(context.Context, *awssqs.DeleteMessageInput, ...func(*awssqs.Options)) (*awssqs.DeleteMessageOutput, error) {
	close(s.deleted)
	return &awssqs.DeleteMessageOutput{}, nil
}

func TestUnansweredCallDelaysNeitherTheQueueNorShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, err := stet.New(memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close() }()
		f := &fixture{t: t, engine: engine}
		api := &silent{deleted: make(chan struct{})}
		r, err := sqs.New(f.consumer(func(context.Context, string) error { return nil }),
			sqs.Options{Client: api, QueueURL: "orders", DeadLetterQueueURL: "dead"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		<-api.deleted
		synctest.Wait() // the next call waits for its answer
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
