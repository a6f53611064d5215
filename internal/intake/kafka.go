package intake

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/stet-go/stet/stetmsg/kafka"
)

const kafkaURL = "it must be like kafka://host:9092,host:9092, or with TLS kafkas://user:password@host:9093?sasl=scram-sha-512, with special characters of a user or password percent-encoded"

// KafkaOptions returns the options of a client of Kafka that a URL names. The error is a
// *FieldError, which does not quote the URL.
func KafkaOptions(url string) ([]kgo.Opt, error) { return Source{URL: url}.kafka() }

// kafka returns the options of a client.
func (s Source) kafka() (client []kgo.Opt, err error) {
	scheme, rest, _ := strings.Cut(s.URL, "://")
	rest, query, _ := strings.Cut(rest, "?")
	user := ""
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user, rest = rest[:i], rest[i+1:]
	}
	var seeds []string
	for host := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			return nil, wrong("from", kafkaURL)
		}
		seeds = append(seeds, host)
	}
	client = []kgo.Opt{kgo.SeedBrokers(seeds...), kgo.ClientID("stet-consume"), kgo.DialTimeout(dialTimeout)}
	if scheme == "kafkas" {
		client = append(client, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	asked, err := url.ParseQuery(query)
	if err != nil {
		return nil, wrong("from", kafkaURL)
	}
	for name := range asked {
		if name != "sasl" {
			return nil, wrong("from", "after the question mark there may be sasl=plain, sasl=scram-sha-256 or sasl=scram-sha-512")
		}
	}
	how := asked.Get("sasl")
	name, password, err := userOf(user)
	switch {
	case err != nil:
		return nil, wrong("from", kafkaURL)
	case (user == "") != (how == ""):
		return nil, wrong("from", "a user and ?sasl=scram-sha-512 (or scram-sha-256, plain) go together")
	case how == "plain" && scheme != "kafkas":
		return nil, wrong("from", "plain would send the password unencrypted; use kafkas://, or scram-sha-512")
	case how == "plain":
		return append(client, kgo.SASL(plain.Auth{User: name, Pass: password}.AsMechanism())), nil
	case how == "scram-sha-256":
		return append(client, kgo.SASL(scram.Auth{User: name, Pass: password}.AsSha256Mechanism())), nil
	case how == "scram-sha-512":
		return append(client, kgo.SASL(scram.Auth{User: name, Pass: password}.AsSha512Mechanism())), nil
	case how != "":
		return nil, wrong("from", "sasl is none of plain, scram-sha-256 and scram-sha-512")
	}
	return client, nil
}

func userOf(s string) (name, password string, err error) {
	name, password, _ = strings.Cut(s, ":")
	if name, err = url.PathUnescape(name); err == nil {
		password, err = url.PathUnescape(password)
	}
	return name, password, err
}

func checkKafka(s Source) error {
	client, err := s.kafka()
	switch {
	case err != nil:
		return err
	case len(s.Topics) == 0 || slices.Contains(s.Topics, ""):
		return wrong("topics", "required: a list of topics that are received")
	case s.Group == "":
		return wrong("group", "required: the consumer group, which stores the offsets")
	case s.DeadLetter == "":
		return wrong("dead_letter", "required: the topic that gets dead letters")
	case slices.Contains(s.Topics, s.DeadLetter):
		return wrong("dead_letter", "it is among topics: dead letters would come again and again")
	}
	if _, err := kafka.New(unused[*kgo.Record](), kafka.Options{Client: client, Group: s.Group, Topics: s.Topics, DeadLetterTopic: s.DeadLetter}); err != nil {
		return wrong("from", "%w", reason(err))
	}
	return nil
}

func runKafka(ctx context.Context, s Source, o Options) error {
	client, err := s.kafka()
	if err != nil {
		return err
	}
	c, err := consumer(o, kafka.Envelope, kafka.Part)
	if err != nil {
		return err
	}
	r, err := kafka.New(c, kafka.Options{Client: client, Group: s.Group, Topics: s.Topics, DeadLetterTopic: s.DeadLetter})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
