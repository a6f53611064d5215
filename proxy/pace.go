package proxy

import (
	"bufio"
	"cmp"
	"errors"
	"net"
	"time"
)

// pace is how many bytes a client has sent or read, and how long the proxy has waited for it.
type pace struct {
	began  time.Time // when it was waited for last
	waited time.Duration
	bytes  int64
}

// maxCredit is the longest time that bytes add.
const maxCredit = 1000 * time.Hour

// upload is Upload, or its default.
func (l *Limits) upload() time.Duration { return cmp.Or(time.Duration(l.Upload), DefaultUpload) }

// patience is how much longer the proxy waits for a client.
func (l *Limits) patience(p *pace) time.Duration {
	credit := float64(p.bytes) / float64(cmp.Or(l.MinRate, DefaultMinRate)) // seconds
	return l.upload() + time.Duration(min(credit, maxCredit.Seconds())*float64(time.Second)) - p.waited
}

// Hijack implements http.Hijacker, for WebSocket.
func (v *requestState) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := v.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &switched{c, v}, rw, nil
}

// switched is a client's connection after it has switched to another protocol.
type switched struct {
	net.Conn
	state *requestState
}

// Write implements io.Writer. It takes the client to make progress.
func (s *switched) Write(p []byte) (int, error) {
	s.state.deadline(s.SetWriteDeadline, &s.state.writing)
	n, err := s.Conn.Write(p)
	s.state.done(s.SetWriteDeadline, &s.state.writing, true, n)
	return n, err
}

// CloseWrite closes the writing side, if the connection can.
func (s *switched) CloseWrite() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
