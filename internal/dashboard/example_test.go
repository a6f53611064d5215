package dashboard_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/store/memory"
)

func ExampleNew() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()
	h, err := dashboard.New(engine, dashboard.Options{
		Tokens: []dashboard.Token{{Name: "ada", Secret: "read-it-from-the-environment", Change: true}},
		Audit:  slog.NewJSONHandler(os.Stderr, nil), // or a file
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/stet/", http.StripPrefix("/stet", h))
	server := httptest.NewServer(mux)
	defer server.Close()

	for _, token := range []string{"a-guess-at-the-token", "read-it-from-the-environment"} {
		req, _ := http.NewRequest(http.MethodGet, server.URL+"/stet/v1/operations?state=unknown", nil)
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = res.Body.Close()
		fmt.Println(res.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// 401
	// 200
}

func ExampleCheckToken() {
	fmt.Println(dashboard.CheckToken("hunter2"))
	// Output:
	// 7 bytes; give it at least 16, as 'openssl rand -hex 32' makes them
}
