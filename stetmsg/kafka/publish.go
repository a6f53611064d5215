package kafka

import (
	"cmp"
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/stetmsg"
)

// Publisher returns a stetmsg.Publish that produces records: Message.To is the
// topic, Message.Key the record's key, so that the records of one key keep their
// order; the ID goes along in the header stetmsg.IDHeader. The client must ask for
// the acknowledgement of all in-sync replicas, which is its default.
func Publisher(cl *kgo.Client) stetmsg.Publish {
	return func(ctx context.Context, messages []stet.Message) error {
		for _, m := range messages {
			if err := topic(m.To); err != nil { // the client would query it again and again
				return err
			}
		}
		recs := make([]*kgo.Record, len(messages))
		for i, m := range messages {
			recs[i] = &kgo.Record{Topic: m.To, Value: m.Body, Headers: []kgo.RecordHeader{{Key: stetmsg.IDHeader, Value: []byte(m.ID)}}}
			if m.Key != "" {
				recs[i].Key = []byte(m.Key)
			}
			for name, value := range m.Header {
				if name != stetmsg.IDHeader {
					recs[i].Headers = append(recs[i].Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
				}
			}
		}
		return produce(ctx, ctx, cl, recs...)
	}
}

// Check refuses messages that Kafka never accepts, or not with its default settings because of
// their size: for stet.Options.CheckMessage. The error is of kind
// stet.KindInvalid.
func Check(m stet.Message) error {
	const batch, around, each = 1_000_012, 200, 10 // bytes of the client's largest batch, around a record, and around a header
	n := around + len(m.To) + len(m.Key) + len(m.Body)
	for name, value := range m.Header {
		n += each + len(name) + len(value)
	}
	if n > batch {
		return misuse.Errorf("stetmsg/kafka: the record would have %d bytes; at most %d", n, batch)
	}
	return topic(m.To)
}

func topic(name string) error {
	const most = 249
	other := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}
	if name == "" || len(name) > most || name == "." || name == ".." || strings.ContainsFunc(name, other) {
		return misuse.Errorf("stetmsg/kafka: Message.To is %.300q; a topic has 1 to %d letters, digits, dots, underscores and hyphens", name, most)
	}
	return nil
}

// produce returns when all records have been acknowledged or refused, or wait has ended.
// ProduceSync would continue waiting for a broker, because the client cannot take back a record
// that it has tried to send, which may still arrive. Therefore ctx may outlast wait.
func produce(ctx, wait context.Context, cl *kgo.Client, recs ...*kgo.Record) (err error) {
	ends := make(chan error, len(recs))
	for _, rec := range recs {
		cl.Produce(ctx, rec, func(_ *kgo.Record, err error) { ends <- err })
	}
	for range recs {
		select {
		case e := <-ends:
			err = cmp.Or(err, e)
		case <-wait.Done():
			return context.Cause(wait)
		}
	}
	return err
}
