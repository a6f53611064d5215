package webhook_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp/webhook"
	"github.com/stet-go/stet/store/memory"
)

func ExampleNew() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Policy: webhook.Policy()})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	hooks, err := webhook.New(engine, webhook.Options{
		Endpoint: "our-organisation",
		Verifier: webhook.GitHub("It's a Secret to Everybody"),
	}, func(_ context.Context, d webhook.Delivery) error {
		fmt.Printf("handling %s\n", d.Body)
		return nil
	})
	if err != nil {
		panic(err)
	}

	for range 3 { // delivered three times
		body := "Hello, World!"
		r := httptest.NewRequest(http.MethodPost, "/hooks", strings.NewReader(body))
		r.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sign([]byte("It's a Secret to Everybody"), body)))
		w := httptest.NewRecorder()
		hooks.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// handling Hello, World!
	// 200
	// 200
	// 200
}
