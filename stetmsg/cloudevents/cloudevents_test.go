package cloudevents_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/cloudevents"
	"github.com/stet-go/stet/store"
)

func message(contentType, body string, headers ...string) stetmsg.Envelope {
	return stetmsg.Envelope{ContentType: contentType, Body: []byte(body), Header: func(name string) (string, bool) {
		for i := 0; i < len(headers); i += 2 {
			if headers[i] == name {
				return headers[i+1], true
			}
		}
		return "", false
	}}
}

func binary(prefix, source, id string) stetmsg.Envelope {
	return message("application/json", `{"books": 5}`, prefix+"specversion", "1.0", prefix+"id", id, prefix+"source", source, prefix+"type", "order.placed",
		prefix+"time", "2026-01-01T00:00:00Z")
}

func structured(body string) stetmsg.Envelope {
	return message("application/cloudevents+json; charset=UTF-8", body)
}

func identify(t *testing.T, e stetmsg.Envelope) stet.Op {
	t.Helper()
	op, err := cloudevents.Identity("shop")(e)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func TestEventIsTheSameInEveryModeAndBinding(t *testing.T) {
	want := identify(t, binary("ce-", "/orders", "1"))
	for name, e := range map[string]stetmsg.Envelope{
		"kafka": binary("ce_", "/orders", "1"),
		"amqp":  binary("cloudEvents:", "/orders", "1"),
		"jms":   binary("cloudEvents_", "/orders", "1"),
		"structured, sent later": structured(`{"specversion":"1.0","id":"1","source":"/orders","type":"order.placed",
			"time":"2026-02-02T00:00:00Z","datacontenttype":"application/json","data":{"books":5}}`),
		"structured, base64": structured(`{"specversion":"1.0","id":"1","source":"/orders","type":"order.placed",
			"datacontenttype":"application/json","data_base64":"eyJib29rcyI6NX0="}`),
	} {
		if got := identify(t, e); got != want {
			t.Errorf("%s: %+v, not %+v", name, got, want)
		}
	}
	text := identify(t, structured(`{"specversion":"1.0","id":"2","source":"/s","type":"t","datacontenttype":"text/plain","data":"hi"}`))
	if text != identify(t, message("text/plain", "hi", "ce-specversion", "1.0", "ce-id", "2", "ce-source", "/s", "ce-type", "t")) {
		t.Error("text differs from mode to mode")
	}
}

func TestSourceAndIDAreJoinedUnambiguously(t *testing.T) {
	keys := map[string]string{}
	for _, p := range [][2]string{{"a:b", "c"}, {"a", "b:c"}, {"a", "bc"}, {"ab", "c"}, {"/A", "1"}, {"/a", "1"}} {
		key := identify(t, binary("ce-", p[0], p[1])).Key
		if other, ok := keys[key]; ok {
			t.Errorf("%v has the key of %s", p, other)
		}
		keys[key] = fmt.Sprint(p)
	}
	long := identify(t, binary("ce-", strings.Repeat("s", 5000), "1"))
	if len(long.Key) > store.MaxKey {
		t.Error("a long source makes a key that is refused")
	}
}

func TestOtherContentUnderTheSameIdentityHasAnotherFingerprint(t *testing.T) {
	a := identify(t, structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"n":9007199254740992}}`))
	for _, body := range []string{
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"n":9007199254740993}}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"u","data":{"n":9007199254740992}}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t"}`,
	} {
		if b := identify(t, structured(body)); b.Key != a.Key || b.Fingerprint == a.Fingerprint {
			t.Errorf("got %s; want b.Key == a.Key, b.Fingerprint != a.Fingerprint", body)
		}
	}
}

func TestIdentityRefusesOtherMessages(t *testing.T) {
	for name, e := range map[string]stetmsg.Envelope{
		"no attributes":     message("application/json", `{}`),
		"no source":         message("", "", "ce-specversion", "1.0", "ce-id", "1", "ce-type", "t"),
		"empty id":          binary("ce-", "/s", ""),
		"version 0.3":       message("", "", "ce-specversion", "0.3", "ce-id", "1", "ce-source", "/s", "ce-type", "t"),
		"a name twice":      structured(`{"specversion":"1.0","id":"1","id":"2","source":"/s","type":"t"}`),
		"not JSON":          structured(`{"specversion"`),
		"two texts":         structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t"}{}`),
		"two kinds of data": structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1,"data_base64":"AA=="}`),
		"bad base64":        structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"!"}`),
		"a number as id":    structured(`{"specversion":"1.0","id":1,"source":"/s","type":"t"}`),
		"a batch, unsplit":  message(cloudevents.BatchMediaType, `[]`),
		"bad UTF-8":         structured("{\"specversion\":\"1.0\",\"id\":\"\xff\",\"source\":\"/s\",\"type\":\"t\"}"),
		"deep":              structured(strings.Repeat("[", 1<<20)),
	} {
		if op, err := cloudevents.Identity("shop")(e); err == nil {
			t.Errorf("%s: %+v", name, op)
		}
	}
}

// plain is a message of no broker.
type plain struct {
	contentType, body string
}

func envelope(m plain) stetmsg.Envelope { return message(m.contentType, m.body) }

func part(_ plain, contentType string, body []byte) plain { return plain{contentType, string(body)} }

func TestBatchIsSplitIntoItsEvents(t *testing.T) {
	split := cloudevents.Split(envelope, part)
	one := `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`
	parts, err := split(plain{cloudevents.BatchMediaType, "[" + one + "," + strings.Replace(one, `"1"`, `"2"`, 1) + "]"})
	if err != nil || len(parts) != 2 {
		t.Fatal(parts, err)
	}
	if a, b := identify(t, envelope(parts[0])), identify(t, envelope(parts[1])); a.Key == b.Key || a != identify(t, structured(one)) {
		t.Error(a, b)
	}
	if parts, err := split(plain{cloudevents.MediaType, one}); err != nil || len(parts) != 1 || parts[0].body != one {
		t.Error("another message was split")
	}
	for _, body := range []string{`[]`, `{}`, `[1`, "[" + strings.TrimSuffix(strings.Repeat("1,", cloudevents.MaxBatch+1), ",") + "]"} {
		if _, err := split(plain{cloudevents.BatchMediaType, body}); err == nil {
			t.Errorf("%.20s was split", body)
		}
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add("application/cloudevents+json", []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":[1]}}`))
	f.Add("application/json", []byte(`{}`))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		op, err := cloudevents.Identity("shop")(message(contentType, string(body), "ce-id", "1"))
		if err == nil && (op.Key == "" || len(op.Key) > store.MaxKey) {
			t.Error(op)
		}
	})
}

func ExampleIdentity() {
	identity := cloudevents.Identity("shop")
	op, err := identity(stetmsg.Envelope{ContentType: cloudevents.MediaType, Body: []byte(
		`{"specversion":"1.0","id":"A234-1234","source":"/orders","type":"order.placed","data":{"books":5}}`)})
	fmt.Println(op.Key, err)
	// Output: 82aff07d-cc16-8c0d-a01d-6fafca505fee <nil>
}
