package rig

import (
	"bufio"
	"io"
	"strings"
	"sync/atomic"
)

// The MySQL protocol: a packet has a length of three bytes, a number, and its content. Of a request, the
// first byte of the content is the command. A client sends a request when it has the reply to the last.
const (
	mysqlHead  = 4
	mysqlQuery = 3
)

// mysqlForwarders return the functions that forward the requests and the replies of a connection.
func (p *Proxy) mysqlForwarders() (up, down func(io.Writer, io.Reader) error) {
	var losing atomic.Bool // the reply to the request that was forwarded last
	up = func(to io.Writer, from io.Reader) error {
		r := bufio.NewReader(from)
		for {
			head := make([]byte, mysqlHead)
			if _, err := io.ReadFull(r, head); err != nil {
				return err
			}
			packet := make([]byte, mysqlHead+(int(head[0])|int(head[1])<<8|int(head[2])<<16))
			copy(packet, head)
			if _, err := io.ReadFull(r, packet[mysqlHead:]); err != nil {
				return err
			}
			if last := lastCommand(packet); last != "" {
				if p.awaited(&p.requests) == last && p.take(&p.requests, last) {
					return errLost
				}
				losing.Store(p.awaited(&p.replies) == last && p.take(&p.replies, last))
			}
			if _, err := to.Write(packet); err != nil {
				return err
			}
		}
	}
	down = func(to io.Writer, from io.Reader) error {
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			if n > 0 && losing.Load() {
				return errLost
			}
			if _, failed := to.Write(b[:n]); failed != nil || err != nil {
				return err
			}
		}
	}
	return up, down
}

// lastCommand is the first word, in capitals, of the last statement of a request.
func lastCommand(packet []byte) string {
	if packet[3] != 0 || len(packet) <= mysqlHead || packet[mysqlHead] != mysqlQuery {
		return ""
	}
	text := string(packet[mysqlHead+1:])
	return firstWord(text[strings.LastIndex(text, ";")+1:])
}
