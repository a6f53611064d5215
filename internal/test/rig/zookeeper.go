package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// zooKeeperJar is where Debian's package zookeeper has the server.
const zooKeeperJar = "/usr/share/java/zookeeper.jar"

// ZooKeeper is an ensemble of ZooKeeper servers, each of which can be stopped, killed
// and paused. Settings are those of Debian's zoo.cfg; a server logs warnings.
type ZooKeeper struct{ Servers []*Server }

// StartZooKeeper starts an ensemble of n servers, with options for their virtual machines. It takes
// some seconds.
func (r *Rig) StartZooKeeper(ctx context.Context, n int, jvm ...string) (*ZooKeeper, error) {
	java, err := program("java")
	if err == nil && !exists(zooKeeperJar) {
		err = fmt.Errorf("there is no %s on this machine; run: make services", zooKeeperJar)
	}
	if err != nil {
		return nil, err
	}
	var members strings.Builder
	for i := range n {
		quorum, err := freePort()
		if err != nil {
			return nil, err
		}
		election, err := freePort()
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&members, "server.%d=127.0.0.1:%d:%d\n", i+1, quorum, election)
	}
	z := &ZooKeeper{}
	for i := range n {
		s, err := r.add("zookeeper")
		if err != nil {
			return nil, err
		}
		s.spec = spec{
			command: func(port int) ([]string, error) {
				err := r.zooKeeperFiles(s.dir, i+1, port, members.String())
				argv := []string{java, "-Xmx512m", "-XX:+UseSerialGC", "-Djava.io.tmpdir=" + s.dir, "-cp", s.dir + ":" + zooKeeperJar}
				return append(append(argv, jvm...), "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(s.dir, "zoo.cfg")), err
			},
			ready: func(port, _ int) bool { return zooKeeperMode(port) != "" },
			stop:  syscall.SIGTERM,
			quit:  syscall.SIGKILL,
		}
		z.Servers = append(z.Servers, s)
	}
	return z, z.Start(ctx)
}

// zooKeeperFiles writes the files of a server.
func (r *Rig) zooKeeperFiles(dir string, id, port int, members string) error {
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	conf := fmt.Sprintf("tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n%s", data, port, members)
	log := "log4j.rootLogger=WARN, OUT\nlog4j.appender.OUT=org.apache.log4j.ConsoleAppender\n" +
		"log4j.appender.OUT.layout=org.apache.log4j.PatternLayout\nlog4j.appender.OUT.layout.ConversionPattern=%d %p %m%n\n"
	return errors.Join(r.give(data),
		r.write(filepath.Join(data, "myid"), fmt.Append(nil, id)),
		r.write(filepath.Join(dir, "zoo.cfg"), []byte(conf)),
		r.write(filepath.Join(dir, "log4j.properties"), []byte(log)))
}

// zooKeeperMode is leader, follower or standalone; "" of a server that does not serve.
func zooKeeperMode(port int) string {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second) //nolint:noctx // bounded
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("srvr")); err != nil {
		return ""
	}
	said, _ := io.ReadAll(c)
	_, mode, _ := strings.Cut(string(said), "\nMode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}

// Start starts all servers that do not run, at the same time: one alone serves nothing.
func (z *ZooKeeper) Start(ctx context.Context) error {
	errs := make([]error, len(z.Servers))
	var all sync.WaitGroup
	for i, s := range z.Servers {
		all.Go(func() { errs[i] = s.Start(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Addrs are the addresses of the servers.
func (z *ZooKeeper) Addrs() (addrs []string) {
	for _, s := range z.Servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Leader returns the server that leads. It waits until one does.
func (z *ZooKeeper) Leader(ctx context.Context) (leader *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = poll(ctx, func() bool {
		for _, s := range z.Servers {
			if zooKeeperMode(s.port) == "leader" {
				leader = s
			}
		}
		return leader != nil
	})
	return leader, err
}

// NewZooKeeper starts an ensemble of n servers for this test alone. It ends with the test.
func NewZooKeeper(t testing.TB, n int, jvm ...string) *ZooKeeper {
	t.Helper()
	z := start(t, func(r *Rig) (*ZooKeeper, error) { return r.StartZooKeeper(t.Context(), n, jvm...) })
	for _, s := range z.Servers {
		end(t, s)
	}
	return z
}

// ZooKeeperForAll starts an ensemble of n servers that ends with the tests of the binary. None of its
// servers can be stopped, killed or paused.
func ZooKeeperForAll(t testing.TB, n int) *ZooKeeper {
	t.Helper()
	z := start(t, func(r *Rig) (*ZooKeeper, error) { return r.StartZooKeeper(context.Background(), n) })
	for _, s := range z.Servers {
		s.shared = true
	}
	return z
}
