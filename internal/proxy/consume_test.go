package proxy_test

import (
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
)

const (
	ofRabbitMQ  = "name: orders, from: 'amqp://u:secret@h/', queue: orders, post: /events"
	ofJetStream = "name: orders, from: 'nats://h:4222', stream: S, consumer: c, dead_letter: dead, post: /events"
	ofKafka     = "name: orders, from: 'kafka://h:9092,i:9092', topics: [t], group: g, dead_letter: dead, post: /events"
	ofSQS       = "name: orders, from: 'https://sqs.eu-central-1.amazonaws.com/1/q', dead_letter: 'https://sqs.eu-central-1.amazonaws.com/1/d', post: /events"
)

func TestMessagesThatCannotBeConsumedAreErrorsWithTheirLine(t *testing.T) {
	for name, c := range map[string]struct{ entry, want string }{
		"no name":            {"from: 'amqp://h/', queue: q, post: /e", "consume[0].name: required"},
		"no broker":          {"name: x, post: /e", "consume[0].from: it is no URL of a broker"},
		"another broker":     {"name: x, from: 'redis://h', post: /e", "consume[0].from: it is no URL of a broker"},
		"password in a URL":  {"name: x, from: 'amqp://u:hunter2@[h/', queue: q, post: /e", "consume[0].from: it must be like amqp://user:password@host"},
		"no queue":           {"name: x, from: 'amqp://h/', post: /e", "consume[0].queue: required"},
		"field of another":   {ofRabbitMQ + ", group: g", "consume[0].group: RabbitMQ has none; there are queue, queue_type, prefetch"},
		"dead end":           {ofRabbitMQ + ", dead_letter: orders", "consume[0].dead_letter: it is the queue itself"},
		"no exchange":        {ofRabbitMQ + ", dead_letter: 'exchange:'", "consume[0].dead_letter: which exchange"},
		"queue type":         {ofRabbitMQ + ", queue_type: big", `consume[0].queue_type: "big" is neither`},
		"order of RabbitMQ":  {ofRabbitMQ + ", ordered: true", "consume[0].ordered: RabbitMQ does not keep the order"},
		"no stream":          {"name: x, from: 'nats://h', consumer: c, dead_letter: d, post: /e", "consume[0].stream: required"},
		"dead wildcard":      {strings.Replace(ofJetStream, "dead_letter: dead", "dead_letter: 'dead.>'", 1), "consume[0].dead_letter: \"dead.>\" must be one subject"},
		"no credentials":     {ofJetStream + ", credentials: /missing", "consume[0].credentials: open /missing"},
		"no group":           {"name: x, from: 'kafka://h:9092', topics: [t], dead_letter: d, post: /e", "consume[0].group: required"},
		"no port":            {"name: x, from: 'kafka://h', topics: [t], group: g, dead_letter: d, post: /e", "consume[0].from: it must be like kafka://host:9092"},
		"user without sasl":  {strings.Replace(ofKafka, "kafka://", "kafka://u:hunter2@", 1), "consume[0].from: a user and ?sasl="},
		"password in clear":  {strings.Replace(ofKafka, "kafka://h:9092,i:9092", "kafka://u:hunter2@h:9092?sasl=plain", 1), "consume[0].from: plain would send the password unencrypted"},
		"dead topic":         {strings.Replace(ofKafka, "[t]", "[t, dead]", 1), "consume[0].dead_letter: it is among topics"},
		"no queue of SQS":    {"name: x, from: 'https://example.com/', dead_letter: 'https://h/1/d', post: /e", "consume[0].from: it must be the URL of a queue of SQS"},
		"order of SQS":       {ofSQS + ", ordered: true", "consume[0].ordered: SQS keeps an order in FIFO queues only"},
		"visibility":         {ofSQS + ", visibility: 1s", "Options.Visibility is 1s"},
		"no path":            {strings.Replace(ofKafka, ", post: /events", "", 1), "consume[0].post: required"},
		"path of another":    {strings.Replace(ofKafka, "/events", "'http://h/events'", 1), "consume[0].post: \"http://h/events\" is no path"},
		"two slashes":        {strings.Replace(ofKafka, "/events", "//h/events", 1), "is no path of the service"},
		"id":                 {ofRabbitMQ + ", id: message-id", "consume[0].id: \"message-id\" is none of header:NAME, cloudevents and digest"},
		"own header":         {ofRabbitMQ + ", headers: [X-A, stet_claim]", "consume[0].headers[1]: stet_claim is set by stet itself"},
		"key as a header":    {ofRabbitMQ + ", headers: [idempotency-key]", "consume[0].headers[0]: idempotency-key is set by stet itself"},
		"connection":         {ofRabbitMQ + ", headers: [Transfer-Encoding]", "consume[0].headers[0]: Transfer-Encoding is about the connection"},
		"no header":          {ofRabbitMQ + ", headers: ['a b']", "is no name of a header field"},
		"concurrency":        {ofRabbitMQ + ", concurrency: 100000", "consume[0].concurrency: 100000 is not between 1 and 1000"},
		"backoff":            {ofRabbitMQ + ", backoff: {first: 1h}", "consume[0].backoff: first, 1h0m0s, is longer than longest, 5m0s"},
		"lease":              {ofRabbitMQ + ", lease: 1ms", "consume[0].lease:"},
		"settles on SQLite":  {ofRabbitMQ + ", settles: service", "consume[0].settles: a service settles by the SQL functions of PostgreSQL"},
		"verify":             {ofRabbitMQ + ", verify: {url: ''}", "consume[0].verify.url:"},
		"retention":          {ofRabbitMQ + ", retention: {result: 30d, tombstone: 1d}", "consume[0].retention"},
		"status":             {ofRabbitMQ + ", unknown: [42]", "consume[0].unknown: 42 is no status"},
		"name of a route":    {strings.Replace(ofRabbitMQ, "name: orders", "name: /pay", 1), "consume[0].name: there are a route and a consumer"},
		"no such field":      {ofRabbitMQ + ", retries: 3", `"retries" is no field of consume[0]`},
		"field of a message": {ofRabbitMQ + ", max_body: big", "is no size"},
	} {
		t.Run(name, func(t *testing.T) {
			text := "upstream: {url: http://127.0.0.1:3000}\nstore: stet.db\nroutes: [{path: /pay}]\nconsume:\n  - {" + c.entry + "}\n"
			config, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(text)), func(string) (string, bool) { return "", false })
			if err == nil {
				err = config.Check()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "stet.yaml:5: ") {
				t.Errorf("%q is missing from %v", c.want, err)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "secret")) {
				t.Errorf("the error shows a password: %v", err)
			}
		})
	}
}

func TestMessagesOfEveryBrokerCanBeConsumed(t *testing.T) {
	for name, entry := range map[string]string{
		"rabbitmq": ofRabbitMQ + ", dead_letter: 'exchange:dead', queue_type: classic, prefetch: 10", "jetstream": ofJetStream + ", ordered: true",
		"several":    strings.Replace(ofJetStream, "nats://h:4222", "tls://h:4222,tls://i:4222", 1),
		"kafka":      ofKafka + ", ordered: true, id: cloudevents",
		"kafka, TLS": strings.Replace(ofKafka, "kafka://h:9092,i:9092", "kafkas://u:p%40ss@h:9093,i:9093?sasl=plain", 1),
		"kafka, sha": strings.Replace(ofKafka, "kafka://h:9092,i:9092", "kafka://u:p@h:9093?sasl=scram-sha-256", 1),
		"sqs":        ofSQS + ", visibility: 2m", "fifo": strings.NewReplacer("/1/q", "/1/q.fifo", "/1/d", "/1/d.fifo").Replace(ofSQS) + ", ordered: true, id: 'header:MessageDeduplicationId'",
	} {
		t.Run(name, func(t *testing.T) {
			text := "upstream: {url: http://127.0.0.1:3000}\nconsume:\n  - {" + entry + "}\n"
			config, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(text)), func(string) (string, bool) { return "", false })
			if err == nil {
				err = config.Check()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}
