package network

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// echo is a server that sends back the bytes it receives.
func echo(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is this machine
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with l
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with conn
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, delay time.Duration) net.Conn {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	addr := echo(t)
	p, err := Start(addr, delay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	conn, err := net.Dial("tcp", p.Addr()) //nolint:noctx // it is this machine
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestATripTakesTheDelayOfBothWays(t *testing.T) {
	const delay = 3 * time.Millisecond
	conn := dial(t, delay)
	b := make([]byte, 4)
	for range 10 {
		began := time.Now()
		if _, err := conn.Write([]byte("trip")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*delay {
			t.Errorf("a trip took %v; want at least %v", took, 2*delay)
		}
	}
}

// TestAStreamIsDelayedAndNotSlowedDown: with one sleep for each of the parcels it would take
// 200 delays at least.
func TestAStreamIsDelayedAndNotSlowedDown(t *testing.T) {
	const delay, parcels = 200 * time.Millisecond, 200
	conn := dial(t, delay)
	sent := make([]byte, 0, parcels*parcelSize)
	for i := range parcels {
		sent = append(sent, bytes.Repeat([]byte{byte(i)}, parcelSize)...)
	}
	began := time.Now()
	go func() { // ends with the connection
		_, _ = conn.Write(sent)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes of %d have come back, or others: %v", len(got), len(sent), err)
	}
	if took := time.Since(began); took < 2*delay || took > parcels*delay/4 {
		t.Errorf("%d parcels there and back took %v; a trip is %v", parcels, took, 2*delay)
	}
}
