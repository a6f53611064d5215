package sqs

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
)

// Publisher returns a stetmsg.Publish that sends messages: Message.To is the URL
// of the queue. The ID goes along as the attribute stetmsg.IDHeader; in a FIFO
// queue it is the MessageDeduplicationId too, by which SQS drops repetitions for
// five minutes, and Message.Key the MessageGroupId. Messages are sent one after the
// other, and none after one that SQS did not take: in a FIFO queue it would
// overtake that one in their group. Bodies must be text that SQS allows, and a
// message have at most nine headers.
func Publisher(client API) stetmsg.Publish {
	return func(ctx context.Context, messages []stet.Message) error {
		for i, m := range messages {
			in := &sqs.SendMessageInput{
				QueueUrl: aws.String(m.To), MessageBody: aws.String(string(m.Body)),
				MessageAttributes: map[string]types.MessageAttributeValue{stetmsg.IDHeader: text(m.ID)},
			}
			for name, value := range m.Header {
				if name != stetmsg.IDHeader {
					in.MessageAttributes[name] = text(value)
				}
			}
			if fifo(m.To) {
				in.MessageDeduplicationId = aws.String(m.ID)
				in.MessageGroupId = aws.String(m.Key)
				if m.Key == "" {
					in.MessageGroupId = aws.String(m.ID) // in order with no other
				}
			}
			if _, err := client.SendMessage(ctx, in); err != nil {
				return fmt.Errorf("stetmsg/sqs: %d of %d messages were sent: %w", i, len(messages), err)
			}
		}
		return nil
	}
}

func text(s string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(s)}
}
