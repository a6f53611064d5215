package amqp

import amqp "github.com/rabbitmq/amqp091-go"

// fit leaves out headers of this package, in this order, until what remains fits
// the frame that headers are sent in. A server closes the connection for a larger one, and would
// then deliver the message again.
func fit(m amqp.Publishing, frame int, less ...string) amqp.Publishing {
	const ends = 8 // bytes around the content of a frame
	for _, name := range less {
		if frame == 0 || headerSize(m) <= frame-ends {
			break
		}
		delete(m.Headers, name)
	}
	return m
}

// headerSize is how many bytes the properties of a message take at most.
func headerSize(m amqp.Publishing) int {
	n := 2 + 2 + 8 + 2 + 1 + 1 + 8 // class, weight, length, flags; mode, priority, time
	for _, s := range []string{m.ContentType, m.ContentEncoding, m.CorrelationId, m.ReplyTo, m.MessageId, m.Type, m.AppId} {
		n += 1 + len(s)
	}
	return n + fieldSize(m.Headers)
}

// fieldSize is how many bytes a field takes.
func fieldSize(v any) int {
	n := 1 + 4 // type and length
	switch v := v.(type) {
	case string:
		return n + len(v)
	case []byte:
		return n + len(v)
	case []any:
		for _, item := range v {
			n += fieldSize(item)
		}
		return n
	case amqp.Table:
		for name, field := range v {
			n += 1 + len(name) + fieldSize(field)
		}
		return n
	default:
		return 1 + 8
	}
}
