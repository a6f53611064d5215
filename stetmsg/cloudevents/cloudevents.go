// Package cloudevents makes operations of CloudEvents (specification 1.0.2): an event is
// known by its source and id together, and "consumers MAY assume that events with identical
// source and id are duplicates". Identity finds events in messages of brokers, and Handler
// receives them by HTTP.
//
//	package main
//
//	import (
//		"context"
//		"log"
//		"net/http"
//
//		"github.com/stet-go/stet"
//		"github.com/stet-go/stet/stetmsg/cloudevents"
//		"github.com/stet-go/stet/store/sqlite"
//	)
//
//	func main() {
//		store, err := sqlite.Open(context.Background(), "shop.db", sqlite.Options{})
//		check(err)
//		engine, err := stet.New(store, stet.Options{})
//		check(err)
//		events, err := cloudevents.Handler(engine, cloudevents.Options{Scope: sender}, pack)
//		check(err)
//		http.Handle("POST /events", events)
//		check(http.ListenAndServe("localhost:8080", nil))
//	}
//
//	// sender says whose events these are, as authentication has established it.
//	func sender(r *http.Request) (string, error) {
//		if _, password, _ := r.BasicAuth(); password != "of the shop" {
//			return "", nil // refused
//		}
//		return "shop", nil
//	}
//
//	// pack is called once for each event.
//	func pack(_ context.Context, ev cloudevents.Event) error {
//		log.Printf("packing %s", ev.Data)
//		return nil
//	}
//
//	func check(err error) {
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
package cloudevents

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/store"
)

// Media types of the JSON event format.
const (
	// MediaType is that of one event in structured mode.
	MediaType = "application/cloudevents+json"
	// BatchMediaType is that of a batch of events.
	BatchMediaType = "application/cloudevents-batch+json"
)

// MaxBatch is the greatest number of events in a batch.
const MaxBatch = 1000

// prefixes of attributes in headers, in binary mode: of NATS and HTTP, of Kafka,
// of AMQP, and of AMQP for clients that are also JMS's.
var prefixes = [...]string{ofHTTP, "ce_", "cloudEvents:", "cloudEvents_"}

// Identity returns the identity of events in binary and in structured mode; for
// batches see Split. The key is made of source and id, which are length-prefixed,
// so that no two pairs share one. The fingerprint is of type and data, JSON being
// compared without white space, so that an event is the same in either mode; of
// anything else an event may have, such as a time of sending, it takes no notice.
//
// A message that is no event, or whose source, id or type is missing or empty,
// is refused. An unknown major version of the specification is refused too.
func Identity(scope string) stetmsg.Identity {
	return func(e stetmsg.Envelope) (stet.Op, error) {
		ev, err := parse(e)
		if err != nil {
			return stet.Op{}, fmt.Errorf("cloudevents: %w", err)
		}
		return stet.Op{
			Scope:       scope,
			Key:         stet.DeriveKey("cloudevents", ev.Source, ev.ID),
			Fingerprint: stet.NewFingerprint([]byte(ev.Type), ev.data),
			Name:        store.LabelText(ev.Type),
		}, nil
	}
}

// event is what identifies an event.
type event struct {
	SpecVersion string         `json:"specversion"`
	ID          string         `json:"id"`
	Source      string         `json:"source"`
	Type        string         `json:"type"`
	ContentType string         `json:"datacontenttype"`
	Data        jsontext.Value `json:"data"`
	Base64      *string        `json:"data_base64"`

	data []byte
}

func parse(e stetmsg.Envelope) (ev event, err error) {
	switch mediaType(e.ContentType) {
	case BatchMediaType:
		return ev, errors.New("the message is a batch: set Options.Split to cloudevents.Split")
	case MediaType:
		err = ev.structured(e.Body)
	default:
		err = ev.binary(e)
	}
	if err != nil {
		return ev, err
	}
	switch {
	case !strings.HasPrefix(ev.SpecVersion, "1."):
		return ev, fmt.Errorf("specversion is %q; only 1.x is supported", ev.SpecVersion)
	case ev.ID == "" || ev.Source == "" || ev.Type == "":
		return ev, errors.New("an event needs an id, a source and a type, none of them empty")
	}
	return ev, nil
}

func (ev *event) binary(e stetmsg.Envelope) error {
	if prefix := prefixOf(e); prefix != "" {
		for name, into := range map[string]*string{"specversion": &ev.SpecVersion, "id": &ev.ID, "source": &ev.Source, "type": &ev.Type} {
			v, _ := e.Header(prefix + name)
			*into = attribute(prefix, v)
		}
		ev.data = e.Body
		if isJSON(e.ContentType) {
			ev.data = compact(e.Body)
		}
		return nil
	}
	return errors.New("the message is no event: it has neither attributes in its headers nor the content type " + MediaType)
}

// structured reads the JSON format. A name that comes twice is an error: readers
// differ in which of the two they take.
func (ev *event) structured(body []byte) error {
	if err := json.Unmarshal(body, ev); err != nil {
		return fmt.Errorf("the event is not valid JSON: %w", err)
	}
	switch {
	case ev.Base64 != nil && len(ev.Data) > 0:
		return errors.New("the event has both data and data_base64")
	case ev.Base64 != nil:
		data, err := base64.StdEncoding.DecodeString(*ev.Base64)
		if err != nil {
			return fmt.Errorf("data_base64: %w", err)
		}
		ev.data = data
		if isJSON(ev.ContentType) {
			ev.data = compact(data)
		}
	case ev.ContentType != "" && !isJSON(ev.ContentType) && ev.Data.Kind() == '"':
		var text string // other content, as a JSON string
		if err := json.Unmarshal(ev.Data, &text); err != nil {
			return err
		}
		ev.data = []byte(text)
	default:
		ev.data = compact(ev.Data)
	}
	return nil
}

// compact removes white space from JSON. Other content stays unchanged.
func compact(b []byte) []byte {
	v := jsontext.Value(bytes.Clone(b))
	if err := v.Compact(); err != nil {
		return b
	}
	return v
}

func mediaType(contentType string) string {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(t))
}

func isJSON(contentType string) bool {
	t := mediaType(contentType)
	return strings.HasSuffix(t, "/json") || strings.HasSuffix(t, "+json")
}

// Split returns an Options.Split that makes the events of a batch, each in
// structured mode, the parts of a message, and leaves other messages whole.
// envelope and part are those of the broker's package. A batch of more than
// MaxBatch events, or of none, is refused.
func Split[M any](envelope func(M) stetmsg.Envelope, part func(m M, contentType string, body []byte) M) func(M) ([]M, error) {
	return func(m M) ([]M, error) {
		e := envelope(m)
		if mediaType(e.ContentType) != BatchMediaType {
			return []M{m}, nil
		}
		var events []jsontext.Value
		if err := json.Unmarshal(e.Body, &events); err != nil {
			return nil, fmt.Errorf("cloudevents: the batch is not valid JSON: %w", err)
		}
		if len(events) == 0 || len(events) > MaxBatch {
			return nil, fmt.Errorf("cloudevents: the batch has %d events; it must have 1 to %d", len(events), MaxBatch)
		}
		parts := make([]M, len(events))
		for i, ev := range events {
			parts[i] = part(m, MediaType, ev)
		}
		return parts, nil
	}
}
