package main

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/stet-go/stet/internal/proxy"
)

func newConsume() *cobra.Command {
	return newAside("consume", "Send messages of a broker to the service, each once", `consume receives messages of RabbitMQ, NATS JetStream, Kafka or SQS and POSTs each
of them to the service, once. A message is acknowledged after its outcome is stored;
if the service refuses it, it becomes a dead letter, with the reason. While the service
cannot be reached, messages wait and use no attempts.

The section consume: of the configuration of 'stet proxy' names the sources and targets
('stet check --reference' explains it). The proxy need not run. Any number of consumers
can run.

SIGTERM ends it after the running messages. SIGHUP reads the configuration again.`, proxy.Consumers|proxy.Relay, consumesAny)
}

// consumesAny refuses a configuration without a section consume.
func consumesAny(c *proxy.Config) error {
	if len(c.Consume) == 0 {
		return errors.New("the configuration names no source of messages; add consume:, as in 'stet check --reference'")
	}
	return nil
}

// messageCounts exports the decisions about messages.
type messageCounts struct{ *proxy.Proxy }

var (
	messagesTotal = prometheus.NewDesc("stet_consume_messages_total", "Decisions about messages, by the name of their consumer.", []string{"name", "action", "reason"}, nil)
	messagePaused = prometheus.NewDesc("stet_consume_paused", "1 while the consumer is paused because the service cannot be used.", []string{"name"}, nil)
)

// Describe implements prometheus.Collector.
func (messageCounts) Describe(ch chan<- *prometheus.Desc) {
	ch <- messagesTotal
	ch <- messagePaused
}

// Collect implements prometheus.Collector.
func (m messageCounts) Collect(ch chan<- prometheus.Metric) {
	counts, paused := m.Messages()
	for _, c := range counts {
		ch <- prometheus.MustNewConstMetric(messagesTotal, prometheus.CounterValue, float64(c.Count), c.Name, c.Action.String(), string(c.Reason))
	}
	for name, is := range paused {
		v := 0.0
		if is {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(messagePaused, prometheus.GaugeValue, v, name)
	}
}
