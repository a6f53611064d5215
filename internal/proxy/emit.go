package proxy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// HeaderEmit, in a response to a protected request, is a message to publish after the outcome is
// stored. It is a JSON object with "to" and optionally "key", "header" (an object of strings) and
// one of "body" (any JSON), "body_text" and "body_base64". Each message has a field of its own.
// The write that stores the response also stores the messages. Config.Relay says how they are
// sent.
const HeaderEmit = "Stet-Emit"

// RefusedDestination receives values of HeaderEmit that are no messages, unchanged, for an
// operator. The response stands, because the service has executed. Only a Target that names this
// destination takes them.
const RefusedDestination = "stet.refused"

// reasonHeader is the field of a message to RefusedDestination with the error.
const reasonHeader = "reason"

// emits stores the messages of responses.
type emits struct {
	log     *slog.Logger
	refused atomic.Uint64 // values that are no messages
	lost    atomic.Uint64 // messages that could not be stored

	sayRefused, sayUnrouted, sayUnstored, sayUnprotected seldom
}

// emission is a value of HeaderEmit.
type emission struct {
	To     string            `json:"to"`
	Key    string            `json:"key"`
	Header map[string]string `json:"header"`
	Body   jsontext.Value    `json:"body"`
	Text   *string           `json:"body_text"`
	Base64 *string           `json:"body_base64"`
}

// contentType is the field in which publishers look for the media type.
const contentType = "content-type"

// message converts the value to a message.
func (e *emission) message() (stet.Message, error) {
	m := stet.Message{To: e.To, Key: e.Key, Header: map[string]string{}}
	for name, value := range e.Header {
		if strings.EqualFold(name, contentType) {
			name = contentType
		}
		if _, twice := m.Header[name]; twice {
			return m, fmt.Errorf("its header has %s twice", name)
		}
		m.Header[name] = value
	}
	bodies, media := 0, ""
	if e.Body != nil {
		bodies, media, m.Body = bodies+1, "application/json", e.Body
	}
	if e.Text != nil {
		bodies, media, m.Body = bodies+1, "text/plain; charset=utf-8", []byte(*e.Text)
	}
	if e.Base64 != nil {
		body, err := base64.StdEncoding.Strict().DecodeString(*e.Base64)
		if err != nil {
			return m, errors.New("its body_base64 is not base64 (RFC 4648, section 4)")
		}
		bodies, m.Body = bodies+1, body
	}
	if bodies > 1 {
		return m, errors.New("it has more than one of body, body_text and body_base64")
	}
	if _, said := m.Header[contentType]; !said && media != "" {
		m.Header[contentType] = media
	}
	if m.To == RefusedDestination {
		return m, fmt.Errorf("%s is a destination that no service sends to", RefusedDestination)
	}
	return m, nil
}

// parseEmission reads one message. Its error quotes no part of it.
func parseEmission(text []byte) (stet.Message, error) {
	var e emission
	if err := json.Unmarshal(text, &e, json.RejectUnknownMembers(true)); err != nil {
		return stet.Message{}, plainly(err)
	}
	return e.message()
}

// plainly returns an error of reading JSON that quotes no part of the text.
func plainly(err error) error {
	switch wrong, ok := errors.AsType[*json.SemanticError](err); {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return errors.New("it has a name twice")
	case errors.Is(err, json.ErrUnknownName):
		return errors.New("it has a field that is none of to, key, header, body, body_text and body_base64")
	case ok && wrong.JSONPointer == "":
		return errors.New("it is not a JSON object")
	case ok:
		return errors.New("a field of it has another type than it must; to, key, body_text and body_base64 are strings, and header an object of strings")
	}
	return errors.New("it is not JSON in UTF-8")
}

// apart returns the messages in a field. An intermediary can have joined several by commas (RFC
// 9110, section 5.3).
func apart(value string) ([]jsontext.Value, error) {
	if !utf8.ValidString(value) {
		return nil, errors.New("it is not UTF-8; write other characters than ASCII as \\u escapes")
	}
	var all []jsontext.Value
	if err := json.Unmarshal([]byte("["+value+"]"), &all); err != nil {
		return nil, plainly(err)
	}
	return all, nil
}

// take stores the messages of a response. A value that is no message is stored unchanged, for
// RefusedDestination.
func (e *emits) take(run *stet.Run, class string, targets *targets, values []string) {
	n, unrouted := 0, 0
	for i, value := range values {
		parts, err := apart(value)
		if err == nil && n+len(parts)+len(values)-i-1 > store.MaxMessages {
			// One message carries all values above the limit, so that none is lost.
			e.refuse(run, class, fmt.Errorf("it is one of more than %d messages of a response", store.MaxMessages), strings.Join(values[i:], "\n"))
			break
		}
		if err != nil {
			e.refuse(run, class, err, value)
			n++
			continue
		}
		for _, part := range parts {
			n++
			m, err := parseEmission(part)
			if err == nil {
				err = run.Emit(m)
			}
			if err != nil {
				e.refuse(run, class, err, string(part))
			} else if targets.of(m.To) == nil {
				unrouted++
			}
		}
	}
	if unrouted > 0 && e.sayUnrouted.due() {
		e.log.Error("proxy: a service emits messages to a destination without a target in relay; they are stored, and sent when it is added",
			operation(run, class), slog.Int("messages", unrouted))
	}
}

// refuse stores a value that is no message.
func (e *emits) refuse(run *stet.Run, class string, why error, value string) {
	attrs := []any{operation(run, class), slog.String("why", bare(why)), slog.Int("bytes", len(value)), slog.Uint64("so_far", e.refused.Add(1))}
	err := run.Emit(stet.Message{To: RefusedDestination, Header: map[string]string{reasonHeader: bare(why)}, Body: []byte(value)})
	switch {
	case err != nil:
		e.lost.Add(1)
		e.log.Error("proxy: a message in "+HeaderEmit+" cannot be sent or stored, and is lost; the outcome is unchanged",
			append(attrs, slog.String("error", bare(err)))...)
	case e.sayRefused.due():
		e.log.Error("proxy: a value of "+HeaderEmit+" is not a valid message; it is stored, to be sent to "+RefusedDestination+", and the outcome is unchanged", attrs...)
	}
}

// bare returns the cause of an error of the engine.
func bare(err error) string {
	if e, ok := errors.AsType[*stet.Error](err); ok && e.Cause != nil {
		err = e.Cause
	}
	return store.LabelText(err.Error())
}

// emitted stores the messages in h, the header or the trailer of a response.
func (f *forwarder) emitted(run *stet.Run, t *trip, h http.Header) {
	values, e := h[HeaderEmit], f.emits
	switch {
	case len(values) == 0:
	case run == nil || t == nil:
		if lost := e.lost.Add(uint64(len(values))); e.sayUnprotected.due() {
			e.log.Error("proxy: the response to an unprotected request has "+HeaderEmit+"; without an outcome the message cannot be stored, so it is not sent",
				slog.Uint64("so_far", lost))
		}
	case t.route.Settles == settlesService:
		e.lost.Add(uint64(len(values)))
		e.log.Error("proxy: messages of a response are not sent: on a route with settles: service, the service emits with stet_emit in its transaction",
			operation(run, t.route.class()), slog.Int("messages", len(values)))
	case t.undone || run.Declared() != stet.Executed:
		if e.sayUnstored.due() {
			e.log.Warn("proxy: a response that is not stored has "+HeaderEmit+"; it is no outcome, so nothing is sent",
				operation(run, t.route.class()), slog.Int("messages", len(values)))
		}
	default:
		e.take(run, t.route.class(), f.targets, values)
	}
}

// operation has the attributes of a log record about a run.
func operation(run *stet.Run, class string) slog.Attr {
	return slog.Group("", slog.String("id", run.ID().String()), slog.String("route", class), slog.Int64("fence", run.Fence()))
}
