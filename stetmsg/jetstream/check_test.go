package jetstream_test

import (
	"strings"
	"testing"

	js "github.com/nats-io/nats.go/jetstream"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg/jetstream"
)

func TestCheckRefusesInvalidMessages(t *testing.T) {
	with := func(name, value string) stet.Message {
		return stet.Message{To: "orders", Header: map[string]string{name: value}}
	}
	for name, m := range map[string]stet.Message{
		"no subject":         {},
		"an empty part":      {To: "orders..shipped"},
		"a dot at the end":   {To: "orders."},
		"a space":            {To: "orders shipped"},
		"a wildcard":         {To: "orders.*"},
		"all":                {To: "orders.>"},
		"a large message":    {To: "orders", Body: make([]byte, 1<<20-100)},
		"a name and a colon": with("a:b", "x"),
		"a name and a space": with("a b", "x"),
		"lines":              with("x", "a\r\nNats-Rollup: all"),
	} {
		if err := jetstream.Check(m); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckedMessageIsPublished(t *testing.T) {
	f := newFixture(t, rig.NATS(t).URL(), js.ConsumerConfig{})
	name := t.Name() + "-out"
	if _, err := f.js.CreateStream(t.Context(), js.StreamConfig{Name: name, Subjects: []string{name + ".>"}}); err != nil {
		t.Fatal(err)
	}
	publish := jetstream.Publisher(f.js)
	for _, m := range []stet.Message{
		{To: name + ".a*b.>c"},
		{To: name + "." + strings.Repeat("x", 900)},
		{To: name + ".large", Body: make([]byte, 1<<20-250), Header: map[string]string{"kind": "shipped"}},
		{To: name + ".é", Header: map[string]string{"kind": "é"}},
	} {
		m.ID = stet.NewKey()
		if err := jetstream.Check(m); err != nil {
			t.Errorf("%.80s: %v", m.To, err)
		}
		if err := publish(t.Context(), []stet.Message{m}); err != nil {
			t.Errorf("%.80s: %v", m.To, err)
		}
	}
	if err := publish(t.Context(), []stet.Message{{ID: "1", To: name + ".*"}}); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}
