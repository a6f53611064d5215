package cloudevents_test

import (
	"maps"
	"net/http"
	"reflect"
	"testing"

	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetmsg/cloudevents"
)

// listed is an envelope that knows the names of its headers.
func listed(e stetmsg.Envelope, names ...string) stetmsg.Envelope {
	e.Names = func() []string { return names }
	return e
}

func TestEventOfEachBindingHasTheSameHeader(t *testing.T) {
	want := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/b%C3%BCcher"}, "Ce-Type": {"order%20placed"},
		"Ce-Subject": {"50%25"}, "Content-Type": {"application/json"}}
	headers := func(prefix, source, typ, subject string) stetmsg.Envelope {
		all := []string{prefix + "specversion", "1.0", prefix + "id", "1", prefix + "source", source, prefix + "type", typ,
			prefix + "subject", subject, prefix + "Not-One", "x", "other", "y"}
		var names []string
		for i := 0; i < len(all); i += 2 {
			names = append(names, all[i])
		}
		return listed(message("application/json", `{"books": 5}`, all...), names...)
	}
	for name, e := range map[string]stetmsg.Envelope{
		"nats":  headers("ce-", "/b%C3%BCcher", "order%20placed", "50%25"),
		"kafka": headers("ce_", "/bücher", "order placed", "50%"),
		"amqp":  headers("cloudEvents:", "/bücher", "order placed", "50%"),
		"structured": structured(`{"specversion":"1.0","id":"1","source":"/bücher","type":"order placed","subject":"50%","dataschema":null,
			"datacontenttype":"application/json","data":{"books":5}}`),
		"structured, of no content type": structured(`{"specversion":"1.0","id":"1","source":"/bücher","type":"order placed","subject":"50%","data":{"books":5}}`),
	} {
		ev, ok, err := cloudevents.Read(e)
		if err != nil || !ok || !reflect.DeepEqual(ev.Header(), want) {
			t.Errorf("%s: %v, %v, %v", name, ev.Header(), ok, err)
		}
		if got := string(ev.Data); got != `{"books":5}` && got != `{"books": 5}` {
			t.Errorf("%s: the data is %s", name, got)
		}
	}
}

func TestEventHasAllAttributes(t *testing.T) {
	ev, ok, err := cloudevents.Read(structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","priority":7,"final":true,"datacontenttype":"image/png","data_base64":"AAH/"}`))
	if err != nil || !ok || ev.ContentType != "image/png" || string(ev.Data) != "\x00\x01\xff" {
		t.Errorf("%+v, %v, %v", ev, ok, err)
	}
	if want := map[string]string{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "priority": "7", "final": "true"}; !maps.Equal(ev.Attributes, want) {
		t.Errorf("the attributes are %v", ev.Attributes)
	}
}

func TestDataOfAnyJSONIsJSON(t *testing.T) {
	for _, mediaType := range []string{"application/json", "text/json; charset=utf-8", "application/problem+json"} {
		ev, _, err := cloudevents.Read(structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"` + mediaType + `","data":"abc"}`))
		if err != nil || string(ev.Data) != `"abc"` {
			t.Errorf("%s: %q, %v", mediaType, ev.Data, err)
		}
	}
}

func TestReadRefusesOtherMessages(t *testing.T) {
	if _, ok, err := cloudevents.Read(message("application/json", `{"id":"1"}`, "id", "1")); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	for name, e := range map[string]stetmsg.Envelope{
		"batch":         message(cloudevents.BatchMediaType, `[]`),
		"no source":     message("", "x", "ce-id", "1", "ce-specversion", "1.0", "ce-type", "t"),
		"other version": message("", "x", "ce-id", "1", "ce-specversion", "2.0", "ce-type", "t", "ce-source", "s"),
		"name":          structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","x-y":"z"}`),
		"nested":        structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","more":{"a":1}}`),
		"a fraction":    structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","more":1.5}`),
		"an exponent":   structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","more":1e3}`),
		"twice":         structured(`{"specversion":"1.0","id":"1","id":"2","source":"s","type":"t"}`),
	} {
		if ev, ok, err := cloudevents.Read(e); !ok || err == nil {
			t.Errorf("%s: %+v, %v", name, ev, ok)
		}
	}
}
