package rig

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy forwards TCP connections to a server, and damages them when told to.
type Proxy struct {
	target   string
	addr     string
	protocol protocol
	work     sync.WaitGroup
	ctx      context.Context // of dialling; ends with the proxy
	cancel   context.CancelFunc

	mu       sync.Mutex
	turn     *sync.Cond // mu; stalled or closed changed
	listener net.Listener
	links    map[*link]struct{}
	stalled  bool
	closed   bool
	replies  loss
	requests loss
}

// protocol is what a proxy reads of the messages that it forwards. Only of a known one can requests and
// replies be lost.
type protocol uint8

const (
	anyProtocol protocol = iota
	postgresProtocol
	mysqlProtocol
)

// loss is the planned losses, and the losses so far.
type loss struct {
	command string
	left    int
	lost    int
}

// link is a client's connection and the proxy's to the server.
type link struct{ client, server net.Conn }

// StartProxy starts a proxy that forwards to target (host:port), of whatever
// protocol. The caller closes it.
func StartProxy(target string) (*Proxy, error) { return startProxy(target, anyProtocol) }

// StartPostgresProxy starts a proxy in front of a PostgreSQL server or PgBouncer
// at addr (host:port); connections through it are not encrypted. The caller
// closes it.
func StartPostgresProxy(addr string) (*Proxy, error) { return startProxy(addr, postgresProtocol) }

// StartMariaDBProxy starts a proxy in front of a MariaDB or MySQL server at addr (host:port). The caller
// closes it.
func StartMariaDBProxy(addr string) (*Proxy, error) { return startProxy(addr, mysqlProtocol) }

func startProxy(target string, of protocol) (*Proxy, error) {
	p := &Proxy{target: target, protocol: of, links: map[*link]struct{}{}}
	p.turn = sync.NewCond(&p.mu)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	l, err := listenAnywhere()
	if err != nil {
		p.cancel()
		return nil, err
	}
	p.addr = l.Addr().String()
	p.listen(l)
	return p, nil
}

// NewProxy starts a proxy of any protocol in front of addr, for this test.
func NewProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	return proxyOf(t, addr, anyProtocol)
}

// NewPostgresProxy starts a proxy in front of a PostgreSQL server or PgBouncer,
// for this test.
func NewPostgresProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	return proxyOf(t, addr, postgresProtocol)
}

// NewMariaDBProxy starts a proxy in front of a MariaDB or MySQL server, for this test.
func NewMariaDBProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	return proxyOf(t, addr, mysqlProtocol)
}

func proxyOf(t testing.TB, addr string, of protocol) *Proxy {
	t.Helper()
	p, err := startProxy(addr, of)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Addr is host:port of the proxy.
func (p *Proxy) Addr() string { return p.addr }

// Close ends all connections and the proxy.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.turn.Broadcast()
	p.mu.Unlock()
	p.cancel()
	p.Refuse()
	p.Cut()
	p.work.Wait()
}

// Cut resets all connections, on both sides.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

func (l *link) cut() {
	for _, c := range []net.Conn{l.client, l.server} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, which no peer takes for an orderly end
		}
		_ = c.Close()
	}
}

// Refuse stops listening: new connections are refused by the kernel. Connections that
// exist continue; see Cut.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Accept takes connections again, on the same address.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return nil
	}
	l, err := listen(p.addr)
	if err == nil {
		p.listen(l)
	}
	return err
}

// Stall keeps everything that arrives from now on, in either direction, until
// Resume; new connections are accepted and stall, too.
func (p *Proxy) Stall() { p.setStalled(true) }

// Resume ends a stall: delayed bytes are forwarded.
func (p *Proxy) Resume() { p.setStalled(false) }

func (p *Proxy) setStalled(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = yes
	p.turn.Broadcast()
}

// listen serves what l accepts. The caller holds p.mu, or has just made p.
func (p *Proxy) listen(l net.Listener) {
	p.listener = l
	p.work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(client) })
		}
	})
}

func (p *Proxy) serve(client net.Conn) {
	server, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		(&link{client, client}).cut()
		return
	}
	l := &link{client, server}
	defer l.cut()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	}()
	up, down := copyAll, copyAll
	switch p.protocol {
	case postgresProtocol:
		if err := p.startup(l); err != nil {
			return
		}
		up, down = p.forwardRequests, p.forwardReplies
	case mysqlProtocol:
		up, down = p.mysqlForwarders()
	}
	p.work.Go(func() {
		defer l.cut()
		_ = up(&gate{p, server}, client)
	})
	_ = down(&gate{p, client}, server)
}

func copyAll(to io.Writer, from io.Reader) error {
	_, err := io.Copy(to, onlyReader{from})
	return err
}

// onlyReader hides that a connection can copy by itself, past the gate.
type onlyReader struct{ io.Reader }

// gate is a writer that waits while the proxy stalls.
type gate struct {
	p *Proxy
	w io.Writer
}

var errProxyClosed = errors.New("the proxy is closed")

func (g *gate) Write(b []byte) (int, error) {
	g.p.mu.Lock()
	for g.p.stalled && !g.p.closed {
		g.p.turn.Wait()
	}
	closed := g.p.closed
	g.p.mu.Unlock()
	if closed {
		return 0, errProxyClosed
	}
	return g.w.Write(b)
}

// LoseReplies arranges that the server's replies to the next n commands are lost
// whose completion has a tag that begins with command, such as "COMMIT" or
// "INSERT": the server commits, and then the connection is reset on both sides
// instead of the reply being forwarded. Of commands inside a transaction, only
// COMMIT counts: the reply to another one leaves nothing unknown. It replaces
// what an earlier call arranged; n = 0 ends it. It is for proxies of PostgreSQL and
// MariaDB; of the latter, a request counts whose last statement begins with command.
func (p *Proxy) LoseReplies(command string, n int) { p.setLoss(&p.replies, command, n) }

// LostReplies is the number of replies that LoseReplies has lost so far.
func (p *Proxy) LostReplies() int { return p.lostOf(&p.replies) }

// LoseRequests arranges that the next n requests are lost that have a statement
// whose first word is command, such as "COMMIT": the connection is reset on both
// sides instead of the request being forwarded, which to the client looks just
// as a lost reply. It replaces what an earlier call arranged; n = 0 ends it. It
// is for proxies of PostgreSQL and MariaDB.
func (p *Proxy) LoseRequests(command string, n int) { p.setLoss(&p.requests, command, n) }

// LostRequests is the number of requests that LoseRequests has lost so far.
func (p *Proxy) LostRequests() int { return p.lostOf(&p.requests) }

func (p *Proxy) setLoss(l *loss, command string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.command, l.left = command, n
}

func (p *Proxy) lostOf(l *loss) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.lost
}

// awaited is the command of which l is to lose another one; "" for none.
func (p *Proxy) awaited(l *loss) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.left <= 0 {
		return ""
	}
	return l.command
}

// take counts one loss of a command, if one is still to be.
func (p *Proxy) take(l *loss, command string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.left <= 0 || l.command != command {
		return false
	}
	l.left--
	l.lost++
	return true
}
