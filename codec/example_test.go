package codec_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/store/memory"
)

var errOutOfStock = errors.New("out of stock")

// declined is an error that a processor words.
type declined struct{ Code string }

func (d *declined) Error() string { return "declined: " + d.Code }

// A retry gets the error that the first caller got, in the sense of errors.Is and errors.As.
func Example() {
	errs, err := codec.NewErrors(codec.Sentinel("out-of-stock", errOutOfStock), codec.ErrorType[*declined]("declined"))
	if err != nil {
		panic(err)
	}
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Values: codec.Gob(), Errors: errs}})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	for range 2 {
		_, err := stet.Do(context.Background(), engine, stet.Op{Scope: "acct_1", Key: "order-1"}, func(context.Context) (int, error) {
			fmt.Println("it runs")
			return 0, fmt.Errorf("card 1: %w", &declined{Code: "05"})
		})
		d, _ := errors.AsType[*declined](err)
		fmt.Println(err, "/", d.Code, errors.Is(err, errOutOfStock))
	}
	// Output:
	// it runs
	// stet: operation failed (may have executed): card 1: declined: 05 / 05 false
	// stet: operation failed (may have executed): card 1: declined: 05 / 05 false
}
