package stethttp_test

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

func order(w http.ResponseWriter, r *http.Request) {
	var o struct{ Amount int }
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Amount != 42 {
		http.Error(w, "the amount is not valid", http.StatusUnprocessableEntity) // not stored: the key is free
		return
	}
	stethttp.Executing(r.Context()) // from here on, each response is the outcome
	w.WriteHeader(http.StatusCreated)
}

// A request that is not valid does not use up its key.
func ExampleExecuting() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	protected, err := stethttp.New(engine, stethttp.Options{Scope: account, Responses: stethttp.StoreExecuted})
	if err != nil {
		log.Fatal(err)
	}
	post(protected.Handler(http.HandlerFunc(order)), "k", `{"amount":0}`)
	charge(protected.Handler(http.HandlerFunc(order)), "k")
	fmt.Println("the key was free")
	// Output:
	// 422 the amount is not valid
	//  replayed: false
	// 201  replayed: false
	// the key was free
}
