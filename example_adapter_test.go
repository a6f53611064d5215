package stet_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// call is a request of some protocol, and handler is what serves it.
type (
	call    struct{ account, key, method, body string }
	handler func(ctx context.Context, c call) (string, error)
)

// protect is an adapter: it names the operation, lets the engine decide whether it runs,
// and words the answer for its protocol.
func protect(e *stet.Engine, next handler) handler {
	return func(ctx context.Context, c call) (string, error) {
		l, err := e.Begin(ctx, stet.Op{Scope: c.account, Key: c.key, Name: c.method,
			Fingerprint: stet.NewFingerprint([]byte(c.method), []byte(c.body))})
		if err != nil {
			return "", refusal(err)
		}
		out := l.Outcome()
		if !l.Replayed() {
			out, err = l.Do(ctx, nil, func(ctx context.Context) (stet.Outcome, error) {
				body, err := next(ctx, c)
				return stet.Outcome{Adapter: store.AdapterGo, Type: "text/plain", Body: []byte(body)}, err
			})
			if err != nil { // nothing is stored that retries would get: do not show the result
				return "", refusal(err)
			}
		}
		if out.Failed {
			return "", out.Decode(nil) // an error, by its text or its reason
		}
		return string(out.Body), nil
	}
}

// refusal tells the caller whether a retry can help, and whether it was executed.
func refusal(err error) error {
	switch stet.KindOf(err) {
	case stet.KindMismatch:
		return errors.New("the key was used for another request")
	case stet.KindInFlight, stet.KindRetryable:
		return errors.New("retry with the same key")
	default:
		return errors.New(stet.ExecutionOf(err).String())
	}
}

// A custom adapter, for a protocol without a package of stet.
func Example_adapter() {
	engine, _ := stet.New(memory.New(memory.Options{}), stet.Options{})
	defer engine.Close()
	charges := 0
	serve := protect(engine, func(_ context.Context, c call) (string, error) {
		if c.body == "0" {
			return "", errors.New("nothing to charge")
		}
		charges++
		return fmt.Sprintf("receipt %d for %s", charges, c.body), nil
	})
	ctx := context.Background()
	fmt.Println(serve(ctx, call{"acct_1", "k1", "charge", "42"}))
	fmt.Println(serve(ctx, call{"acct_1", "k1", "charge", "42"}))
	fmt.Println(serve(ctx, call{"acct_1", "k1", "charge", "43"}))
	fmt.Println(serve(ctx, call{"acct_1", "k2", "charge", "0"}))
	fmt.Println(serve(ctx, call{"acct_1", "k2", "charge", "0"}))
	// Output:
	// receipt 1 for 42 <nil>
	// receipt 1 for 42 <nil>
	//  the key was used for another request
	//  stet: operation failed (may have executed): nothing to charge
	//  stet: operation failed (may have executed): nothing to charge
}
