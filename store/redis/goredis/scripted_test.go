package goredis_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// arrived is a command that has arrived at a script of a server.
type arrived struct {
	name string // the key
	conn int
	free chan struct{} // closed when it may be answered before all are
}

// scripted is a server that notes which EVALSHA it gets, and answers with their key, once it
// may.
type scripted struct {
	net.Listener
	cluster []string // of whom it says that they are its cluster, in equal parts
	mu      sync.Mutex
	got     []arrived
	open    chan struct{}                   // closed while replies may be sent
	reply   func(key string) (reply string) // instead of the key; "break" resets the connection
	choose  func() (reply string)           // to SELECT
}

func newScripted(t *testing.T) *scripted {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{Listener: l, open: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.serve(c, n) })
		}
	})
	t.Cleanup(func() { s.let(); _ = l.Close(); wg.Wait() })
	return s
}

// let lets replies be sent from now on.
func (s *scripted) let() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.open:
	default:
		close(s.open)
	}
}

// release lets the commands be answered that have arrived with a key.
func (s *scripted) release(key string) {
	for _, a := range s.keys() {
		if a.name == key {
			close(a.free)
		}
	}
}

// keys are those of the commands that have arrived.
func (s *scripted) keys() (all []arrived) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(all, s.got...)
}

func (s *scripted) serve(c net.Conn, n int) {
	defer c.Close()
	type answer struct {
		after, or <-chan struct{} // nil: at once
		text      string
	}
	replies := make(chan answer, 1000)
	defer close(replies)
	go func() {
		for r := range replies {
			if r.after != nil {
				select {
				case <-r.after:
				case <-r.or:
				}
			}
			if r.text == "break" {
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
			_, _ = io.WriteString(c, r.text)
		}
	}()
	for r := bufio.NewReader(c); ; {
		args, err := readCommand(r)
		if err != nil {
			return
		}
		switch strings.ToUpper(args[0]) {
		case "CLUSTER":
			replies <- answer{text: s.slots()}
		case "COMMAND":
			replies <- answer{text: "*0\r\n"}
		case "ASKING":
			replies <- answer{text: "+OK\r\n"}
		case "SELECT":
			replies <- answer{text: s.choose()}
		case "EVALSHA":
			key := args[3]
			s.mu.Lock()
			free := make(chan struct{})
			s.got = append(s.got, arrived{key, n, free})
			s.mu.Unlock()
			reply := "+" + key + "\r\n"
			if s.reply != nil {
				reply = s.reply(key)
			}
			replies <- answer{s.open, free, reply}
		default:
			replies <- answer{text: "-ERR unknown command\r\n"}
		}
	}
}

func (s *scripted) slots() string {
	const all = 16384
	reply := fmt.Sprintf("*%d\r\n", len(s.cluster))
	for i, addr := range s.cluster {
		host, port, _ := net.SplitHostPort(addr)
		reply += fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*2\r\n$%d\r\n%s\r\n:%s\r\n", i*all/len(s.cluster), (i+1)*all/len(s.cluster)-1, len(host), host, port)
	}
	return reply
}

// readCommand reads an array of strings.
func readCommand(r *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := number()
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		args[i] = string(b[:size])
	}
	return args, nil
}
