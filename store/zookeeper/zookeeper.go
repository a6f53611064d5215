// Package zookeeper is the store for Apache ZooKeeper 3.5 and later. It is for services that have
// ZooKeeper and no database: a claim and an outcome cost one quorum write each, and every record
// stays in the memory of all servers. See docs/zookeeper.md.
//
// A record is one znode. Each change of it is one multi, which compares the znode's version and its
// place in the schedule. A claim makes the znode anew, so its czxid is the fence: ZooKeeper never
// gives a number twice, also after the record was deleted. A session is not a lease: it lives as
// long as the process, also if a run of it has stopped. The store uses no ephemeral znodes.
//
// The store's clock is the leader's. A record's times count from the mtime that the leader gives
// its write. To decide that a time has come, the store needs the time now: it has that of its last
// write, and writes the znode "clock" if that is older than a second. Its estimate is never ahead of the
// leader's time, and behind it by one round trip at most, so nothing ends early. If another server
// becomes the leader, the difference of their clocks is added: keep them in step by NTP.
//
// ZooKeeper's reads may be stale. A call that returns anything but a settled record reads it after
// a write of "clock", which concurrent calls share.
package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stet-go/stet/store"
)

const (
	sessionTimeout = 6 * time.Second // a server that says nothing is left after two thirds of it
	dialTimeout    = time.Second
)

// MaxResult is the greatest result that the store keeps, in bytes: ZooKeeper refuses requests of
// 1 MiB and more (jute.maxbuffer).
const MaxResult = 1_000_000

// Options configure a Store. The zero value is usable.
type Options struct {
	// Path is the znode below which all others are. Stores that share an ensemble need different
	// ones. Default "/stet".
	Path string
	// Auth is "user:password" of the scheme digest. No other user can then use the znodes that
	// this store creates. Default "": every client can.
	Auth string
	// Dial opens a connection, for TLS for example. Default net.DialTimeout.
	Dial func(network, address string, timeout time.Duration) (net.Conn, error)
}

// Store is a store.Watcher, store.Sweeper, store.Browser and store.Limiter in ZooKeeper. It is safe
// for concurrent use.
type Store struct {
	root    string
	acl     []zk.ACL
	conn    *zk.Conn
	events  <-chan zk.Event // closed when the connection has ended
	clock   clock
	watches watches
	closed  atomic.Bool
	wg      sync.WaitGroup
}

var _ interface {
	store.Watcher
	store.Sweeper
	store.Browser
	store.Limiter
} = (*Store)(nil)

var errClosed = fmt.Errorf("zookeeper: %w: the store is closed", store.ErrNotDone)

// Open opens the store on the servers of one ensemble, each host:port, and creates Options.Path.
// It refuses an ensemble whose servers accept no requests of 1 MiB. ctx bounds the call. Close the
// store after the engine.
func Open(ctx context.Context, servers []string, o Options) (*Store, error) {
	o.Path = cmp.Or(o.Path, "/stet")
	if len(servers) == 0 {
		return nil, errors.New("zookeeper: Open needs the address of one server at least, host:port")
	}
	if !strings.HasPrefix(o.Path, "/") || strings.HasSuffix(o.Path, "/") || strings.Contains(o.Path, "//") || strings.ContainsAny(o.Path, ".\x00") {
		return nil, fmt.Errorf("zookeeper: Options.Path is %q; it must begin with a slash, and have no empty part and no dot", o.Path)
	}
	if o.Auth != "" && !strings.Contains(o.Auth, ":") {
		return nil, errors.New("zookeeper: Options.Auth has no colon; it must be user:password")
	}
	if o.Dial == nil {
		o.Dial = net.DialTimeout
	}
	dial := func(network, address string, _ time.Duration) (net.Conn, error) {
		c, err := o.Dial(network, address, dialTimeout)
		if err != nil {
			return nil, err
		}
		return bounded{c}, nil
	}
	conn, events, err := zk.Connect(servers, sessionTimeout, zk.WithDialer(dial), zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	s := &Store{root: o.Path, acl: zk.WorldACL(zk.PermAll), conn: conn, events: events}
	s.clock.begun = time.Now()
	s.watches.all = make(map[store.ID]*watch)
	if err := s.prepare(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// prepare creates the first znodes and tests the server.
func (s *Store) prepare(ctx context.Context, o Options) error {
	if o.Auth != "" {
		if _, err := call(ctx, s, func() (int, error) { return 0, s.conn.AddAuth("digest", []byte(o.Auth)) }); err != nil {
			return fmt.Errorf("zookeeper: Options.Auth: %w", err)
		}
		s.acl = zk.AuthACL(zk.PermAll)
	}
	parts := strings.Split(s.root, "/")
	var all [][]string
	for i := 2; i <= len(parts); i++ {
		all = append(all, []string{strings.Join(parts[:i], "/")})
	}
	ops := []string{s.root + "/ops"} // and its folders: all or none
	for i := range shards {
		ops = append(ops, fmt.Sprintf("%s/ops/%02x", s.root, i))
	}
	for _, paths := range append(all, []string{s.root + "/clock"}, []string{s.root + "/due"}, ops) {
		if err := s.make(ctx, paths...); err != nil {
			return err
		}
	}
	return s.probe(ctx)
}

// probe sends a request of the greatest size. It is refused for its version, so nothing is written.
func (s *Store) probe(ctx context.Context) (err error) {
	const tries = 3 // a connection can end for other reasons
	for range tries {
		_, err = call(ctx, s, func() (*zk.Stat, error) {
			return s.conn.Set(s.root+"/clock", make([]byte, maxData), math.MaxInt32)
		})
		if errors.Is(err, zk.ErrBadVersion) {
			return s.touch(ctx)
		}
		if !errors.Is(err, zk.ErrConnectionClosed) {
			break
		}
	}
	return fmt.Errorf("zookeeper: the server does not accept a request of %d bytes; each server needs the default jute.maxbuffer, 1048575, at least: %w", maxData, err)
}

// make creates znodes, unless the first exists.
func (s *Store) make(ctx context.Context, paths ...string) error {
	var ops []any
	for _, path := range paths {
		ops = append(ops, &zk.CreateRequest{Path: path, Acl: s.acl})
	}
	for try := 1; ; try++ {
		_, err := s.multi(ctx, ops)
		switch {
		case err == nil || errors.Is(err, zk.ErrNodeExists):
			return nil
		case try == tries || noEffect(err) || !s.again(ctx, err, try):
			return fmt.Errorf("zookeeper: create %s: %w", paths[0], err)
		}
	}
}

// MaxResult implements store.Limiter.
func (s *Store) MaxResult() int { return MaxResult }

// Close ends the session. Later calls fail. It may be called again.
func (s *Store) Close() error {
	s.clock.mu.Lock()
	s.watches.mu.Lock()
	s.closed.Store(true) // no goroutine begins from now on
	s.watches.mu.Unlock()
	s.clock.mu.Unlock()
	s.conn.Close()
	for range s.events { // until it is closed
		continue
	}
	s.wg.Wait()
	return nil
}

// bounded is a connection that does not wait longer for a reply than the session lasts. The client
// waits ten times as long for the reply to its greeting, which a stopped server never sends.
type bounded struct{ net.Conn }

func (b bounded) SetReadDeadline(t time.Time) error {
	if last := time.Now().Add(sessionTimeout); t.After(last) {
		t = last
	}
	return b.Conn.SetReadDeadline(t)
}

// silent is a logger that drops what the client logs: calls return their errors.
type silent struct{}

func (silent) Printf(string, ...any) {}
