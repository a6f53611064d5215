package kafka

import (
	"cmp"
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
)

// Publisher returns a stetmsg.Publish that produces records: Message.To is the
// topic, Message.Key the record's key, so that the records of one key keep their
// order; the ID goes along in the header stetmsg.IDHeader. The client must ask for
// the acknowledgement of all in-sync replicas, which is its default.
func Publisher(cl *kgo.Client) stetmsg.Publish {
	return func(ctx context.Context, messages []stet.Message) error {
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
		return produce(ctx, cl, recs)
	}
}

// produce returns when all records have been acknowledged or refused, or ctx has
// ended. ProduceSync would then go on waiting for a broker, because the client
// cannot take back a record that it has tried to send; such a one may still arrive.
func produce(ctx context.Context, cl *kgo.Client, recs []*kgo.Record) (err error) {
	ends := make(chan error, len(recs))
	for _, rec := range recs {
		cl.Produce(ctx, rec, func(_ *kgo.Record, err error) { ends <- err })
	}
	for range recs {
		select {
		case e := <-ends:
			err = cmp.Or(err, e)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}
