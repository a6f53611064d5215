package rig

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// What the proxy has to know of PostgreSQL's protocol, version 3: chapters
// "Message Flow" and "Message Formats" of its documentation.
const (
	sslRequest    = 80877103
	gssEncRequest = 80877104

	query = 'Q' // of the client
	parse = 'P'
	bind  = 'B'

	commandComplete = 'C' // of the server
	errorResponse   = 'E'
	readyForQuery   = 'Z'
	idle            = 'I' // of readyForQuery: in no transaction

	maxStartup = 10_000
	maxMessage = 1 << 30
	maxKept    = 16 << 20
	peeked     = 64 << 10 // bytes of a request that are looked at
)

// startup forwards the client's first message, which has no type. It declines
// encryption itself: the server's answer to that has no form of a message.
func (p *Proxy) startup(l *link) error {
	for {
		head := make([]byte, 8) // length, which includes itself, and version or request
		if _, err := io.ReadFull(l.client, head); err != nil {
			return err
		}
		switch binary.BigEndian.Uint32(head[4:]) {
		case sslRequest, gssEncRequest:
			if _, err := l.client.Write([]byte{'N'}); err != nil {
				return err
			}
			continue
		}
		n := binary.BigEndian.Uint32(head)
		if n < 8 || n > maxStartup {
			return fmt.Errorf("a startup message of %d bytes", n)
		}
		msg := make([]byte, n)
		copy(msg, head)
		if _, err := io.ReadFull(l.client, msg[8:]); err != nil {
			return err
		}
		_, err := (&gate{p, l.server}).Write(msg)
		return err
	}
}

// forwardRequests forwards a client's messages until one must be lost.
func (p *Proxy) forwardRequests(to io.Writer, from io.Reader) error {
	r := bufio.NewReaderSize(from, peeked)
	w := bufio.NewWriterSize(to, 32<<10)
	prepared := map[string]string{} // first words of statements, by their names
	for {
		if err := flushIdle(w, r); err != nil {
			return err
		}
		kind, body, err := header(r)
		if err != nil {
			return err
		}
		if kind == query || kind == parse || kind == bind {
			start, err := r.Peek(min(body, peeked))
			if err != nil {
				return err
			}
			words := commands(kind, string(start), prepared)
			if c := p.awaited(&p.requests); c != "" && slices.Contains(words, c) && p.take(&p.requests, c) {
				return errLost
			}
		}
		if err := forward(w, r, kind, body); err != nil {
			return err
		}
	}
}

// commands returns the first words, in capitals, of the statements that a
// message has the server execute.
func commands(kind byte, body string, prepared map[string]string) (words []string) {
	first, rest, _ := strings.Cut(body, "\x00")
	second, _, _ := strings.Cut(rest, "\x00")
	switch kind {
	case query:
		for _, statement := range strings.Split(first, ";") {
			words = append(words, firstWord(statement))
		}
	case parse: // name, statement
		prepared[first] = firstWord(second)
	case bind: // portal, name of a statement
		words = append(words, prepared[second])
	}
	return words
}

func firstWord(statement string) string {
	statement = strings.TrimSpace(statement)
	end := strings.IndexFunc(statement, func(c rune) bool { return !unicode.IsLetter(c) })
	if end >= 0 {
		statement = statement[:end]
	}
	return strings.ToUpper(statement)
}

// forwardReplies forwards the server's messages. From the completion of a
// command whose reply must be lost it keeps them until ReadyForQuery, which
// says whether the command has been committed by itself.
func (p *Proxy) forwardReplies(to io.Writer, from io.Reader) error {
	r := bufio.NewReaderSize(from, 32<<10)
	w := bufio.NewWriterSize(to, 32<<10)
	var (
		command string // whose reply is kept
		kept    []byte
		failed  bool // something did since then
	)
	for {
		if err := flushIdle(w, r); err != nil {
			return err
		}
		kind, body, err := header(r)
		if err != nil {
			return err
		}
		if command == "" && kind != commandComplete {
			if err := forward(w, r, kind, body); err != nil {
				return err
			}
			continue
		}
		msg, err := message(r, kind, body)
		if err != nil {
			return err
		}
		if command == "" {
			if c := p.awaited(&p.replies); c != "" && bytes.HasPrefix(msg[5:], []byte(c)) {
				command, failed = c, false
			} else if _, err := w.Write(msg); err != nil {
				return err
			} else {
				continue
			}
		}
		if kept = append(kept, msg...); len(kept) > maxKept {
			return errors.New("too long a reply to keep")
		}
		failed = failed || kind == errorResponse
		if kind != readyForQuery {
			continue
		}
		committed := command == "COMMIT" || msg[5] == idle && !failed
		if committed && p.take(&p.replies, command) {
			return errLost
		}
		if _, err := w.Write(kept); err != nil {
			return err
		}
		command, kept = "", nil
	}
}

var errLost = errors.New("lost, as arranged")

// flushIdle sends the forwarded bytes when nothing else has arrived:
// messages go out together that came together.
func flushIdle(w *bufio.Writer, r *bufio.Reader) error {
	if r.Buffered() > 0 {
		return nil
	}
	return w.Flush()
}

// header reads a message's type and the length of its body.
func header(r *bufio.Reader) (kind byte, body int, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > maxMessage {
		return 0, 0, fmt.Errorf("a message of %d bytes", n)
	}
	return head[0], int(n) - 4, nil
}

// frame is what header has read.
func frame(kind byte, body int) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, uint32(body)+4)
}

func message(r *bufio.Reader, kind byte, body int) ([]byte, error) {
	msg := append(frame(kind, body), make([]byte, body)...)
	_, err := io.ReadFull(r, msg[5:])
	return msg, err
}

func forward(w *bufio.Writer, r *bufio.Reader, kind byte, body int) error {
	if _, err := w.Write(frame(kind, body)); err != nil {
		return err
	}
	_, err := io.CopyN(w, r, int64(body))
	return err
}
