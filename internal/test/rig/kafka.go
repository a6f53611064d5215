package rig

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Kafka is a cluster of Apache Kafka in KRaft mode. Each server is a broker and a controller, and
// can be stopped, killed and paused. Topics are not made by their use; package topic makes them.
// A group takes session timeouts of a second and more, and does not wait for more members before
// its first assignment. One server has no transactions: by default their topic needs three.
type Kafka struct{ Servers []*Server }

// StartKafka starts a cluster of n servers, with more settings of server.properties. It takes some
// seconds.
func (r *Rig) StartKafka(ctx context.Context, n int, settings map[string]string) (*Kafka, error) {
	java, err := program("java")
	if err != nil {
		return nil, err
	}
	jars, err := classPath("kafka")
	if err != nil {
		return nil, err
	}
	ports := make([]int, n)
	voters := make([]string, n)
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
		voters[i] = fmt.Sprintf("%d@127.0.0.1:%d", i+1, ports[i])
	}
	k := &Kafka{}
	for i := range n {
		s, err := r.add("kafka")
		if err != nil {
			return nil, err
		}
		c := kafkaConfig{dir: s.dir, id: i + 1, controller: ports[i], voters: voters, settings: settings}
		var began int64 // size of the log before this start
		s.spec = spec{
			command: func(port int) ([]string, error) {
				began = size(s.logFile())
				file, err := r.kafkaFiles(c, port)
				return slices.Concat([]string{java}, javaOptions(s.dir), []string{
					"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
					"-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", jars, "kafka.Kafka", file,
				}), err
			},
			// The log, because a connection can be that of another server.
			ready: func(port, _ int) bool {
				log, _ := os.ReadFile(s.logFile())
				return strings.Contains(string(log[min(began, int64(len(log))):]), "Kafka Server started") && answers(port)
			},
			stop: syscall.SIGTERM,
			quit: syscall.SIGKILL,
		}
		k.Servers = append(k.Servers, s)
	}
	return k, k.Start(ctx)
}

// kafkaConfig is the configuration of a server.
type kafkaConfig struct {
	dir        string
	id         int
	controller int // its port
	voters     []string
	settings   map[string]string
}

// kafkaFiles writes the files of a server, and returns the one with its properties. The format of the data
// folder is that of kafka-storage.sh, which needs a virtual machine of its own.
func (r *Rig) kafkaFiles(c kafkaConfig, port int) (string, error) {
	n := len(c.voters)
	replicas := fmt.Sprint(min(n, 3))
	properties := map[string]string{
		"process.roles":                    "broker,controller",
		"node.id":                          fmt.Sprint(c.id),
		"controller.quorum.voters":         strings.Join(c.voters, ","),
		"controller.listener.names":        "CONTROLLER",
		"listeners":                        fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, c.controller),
		"listener.security.protocol.map":   "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs":                         filepath.Join(c.dir, "data"),
		"auto.create.topics.enable":        "false",
		"broker.session.timeout.ms":        "4000", // for a killed server: default 9000
		"broker.heartbeat.interval.ms":     "500",
		"group.initial.rebalance.delay.ms": "0",
		"group.min.session.timeout.ms":     "1000",
		"offsets.topic.num.partitions":     "3",
		"offsets.topic.replication.factor": replicas,
		"min.insync.replicas":              fmt.Sprint(min(n, 3)/2 + 1),
		"num.network.threads":              "2",
		"num.io.threads":                   "2",
	}
	maps.Copy(properties, c.settings)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&text, "%s=%s\n", name, properties[name])
	}
	file, data := filepath.Join(c.dir, "server.properties"), filepath.Join(c.dir, "data")
	if err := r.write(file, []byte(text.String())); err != nil || exists(data) {
		return file, err
	}
	id := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "stet-directory-%d", c.id)[:16])
	meta := fmt.Sprintf("version=1\ncluster.id=stet\nnode.id=%d\ndirectory.id=%s\n", c.id, id)
	return file, errors.Join(os.Mkdir(data, 0o755), r.give(data), r.write(filepath.Join(data, "meta.properties"), []byte(meta)))
}

// Start starts all servers that do not run, at the same time: one of several does not start alone.
// A server that has started does not serve its topics at once; topic.Await waits for them.
func (k *Kafka) Start(ctx context.Context) error {
	errs := make([]error, len(k.Servers))
	var all sync.WaitGroup
	for i, s := range k.Servers {
		all.Go(func() { errs[i] = s.Start(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Addrs are the addresses of the brokers. The one with the node ID n has the index n-1.
func (k *Kafka) Addrs() (addrs []string) {
	for _, s := range k.Servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// NewKafka starts a cluster of n servers for this test alone. It ends with the test.
func NewKafka(t testing.TB, n int, settings map[string]string) *Kafka {
	t.Helper()
	k := start(t, func(r *Rig) (*Kafka, error) { return r.StartKafka(t.Context(), n, settings) })
	for _, s := range k.Servers {
		end(t, s)
	}
	return k
}

// KafkaForAll starts a cluster of n servers that ends with the tests of the binary. None of its
// servers can be stopped, killed or paused.
func KafkaForAll(t testing.TB, n int) *Kafka {
	t.Helper()
	k := start(t, func(r *Rig) (*Kafka, error) { return r.StartKafka(context.Background(), n, nil) })
	for _, s := range k.Servers {
		s.shared = true
	}
	return k
}
