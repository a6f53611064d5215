package rig

import "testing"

// brokers are the message brokers that the tests of a binary share. shared.mu
// guards them.
var brokers struct{ rabbitmq, nats broker }

// broker is a server that is started when it is first asked for.
type broker struct {
	server *Server
	err    error // of starting it; not tried again
}

// sharedServer returns the server of b, which it starts with f if need be.
func sharedServer(t testing.TB, b *broker, f func(*Rig) (*Server, error)) *Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	r, err := ofBinary()
	if err != nil {
		t.Fatal(err)
	}
	if b.server == nil && b.err == nil {
		if b.server, b.err = f(r); b.err == nil {
			b.server.shared = true
		}
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.server
}
