package sqs

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
)

// Publisher returns a stetmsg.Publish that sends messages. Message.To is the URL of the queue.
// The ID is the attribute stetmsg.IDHeader. In a FIFO queue it is also the
// MessageDeduplicationId, by which SQS drops repetitions for five minutes, and Message.Key is
// the MessageGroupId. Messages are sent one after the other; after a failure none follows,
// because it would overtake the failed message of its group. Bodies must be text that SQS
// allows. A message can have nine headers.
func Publisher(client API) stetmsg.Publish {
	return func(ctx context.Context, messages []stet.Message) error {
		for i, m := range messages {
			if err := Check(m); err != nil {
				return fmt.Errorf("stetmsg/sqs: %d of %d messages were sent: %w", i, len(messages), err)
			}
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
					in.MessageGroupId = aws.String(m.ID) // in order with no other message
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

// Check refuses messages that SQS does not accept: for stet.Options.CheckMessage. The
// error is of kind stet.KindInvalid. A queue may be made to take less than the 1 MiB
// that SQS does.
func Check(m stet.Message) error {
	const most, headers, group = 1 << 20, 9, 128
	n := len(m.Body) + len(stetmsg.IDHeader) + 100
	for name, value := range m.Header {
		n += len(name) + len("String") + len(value)
		switch {
		case !attribute(name):
			return misuse.Errorf("stetmsg/sqs: the name %.300q in Message.Header must have letters, digits, hyphens, underscores and dots, none at its ends or beside another, and not begin with AWS. or Amazon.", name)
		case value == "" || !allowed(value):
			return misuse.Errorf("stetmsg/sqs: the value of %.300q in Message.Header is empty, or has characters that SQS refuses", name)
		}
	}
	switch {
	case n > most:
		return misuse.Errorf("stetmsg/sqs: the message would have %d bytes; at most %d", n, most)
	case len(m.Body) == 0 || !allowed(string(m.Body)):
		return misuse.Errorf("stetmsg/sqs: Message.Body is empty, or is not text that SQS takes")
	case len(m.Header) > headers:
		return misuse.Errorf("stetmsg/sqs: Message.Header has %d fields; at most %d", len(m.Header), headers)
	case fifo(m.To) && (len(m.Key) > group || strings.ContainsFunc(m.Key, func(r rune) bool { return r <= ' ' || r > '~' })):
		return misuse.Errorf("stetmsg/sqs: Message.Key has %d bytes; the group of a FIFO queue has at most %d, of visible ASCII", len(m.Key), group)
	}
	return nil
}

// allowed reports whether SQS takes a text.
func allowed(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
	})
}

// attribute reports whether SQS takes the name of an attribute.
func attribute(name string) bool {
	lower := strings.ToLower(name)
	return name != "" && len(name) <= 256 && !strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.") &&
		name[0] != '.' && name[len(name)-1] != '.' && !strings.Contains(name, "..") && !strings.ContainsFunc(lower, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}
