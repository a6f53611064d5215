package cloudevents_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetmsg/cloudevents"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{}) // a service needs a durable store, such as store/postgres
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	events, err := cloudevents.Handler(engine, cloudevents.Options{
		Scope: func(r *http.Request) (string, error) { // whose events these are
			if r.Header.Get("Authorization") != "Bearer of-the-shop" {
				return "", nil // refused
			}
			return "shop", nil
		},
	}, func(_ context.Context, ev cloudevents.Event) error {
		fmt.Println("packing", ev.Attributes["subject"], string(ev.Data))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(events)
	defer server.Close()

	for _, mode := range []struct{ contentType, body string }{
		{"application/json", `{"books": 5}`}, // binary mode: the attributes are in the header
		{"application/cloudevents+json", `{"specversion":"1.0","id":"A234","source":"/orders","type":"order.placed","subject":"order 7","data":{"books":5}}`},
	} {
		r, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(mode.body))
		if err != nil {
			log.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer of-the-shop"}, "Content-Type": {mode.contentType}, "Ce-Specversion": {"1.0"},
			"Ce-Id": {"A234"}, "Ce-Source": {"/orders"}, "Ce-Type": {"order.placed"}, "Ce-Subject": {"order%207"}}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			log.Fatal(err)
		}
		_ = response.Body.Close()
		fmt.Println(response.Status)
	}
	// Output:
	// packing order 7 {"books": 5}
	// 204 No Content
	// 204 No Content
}
