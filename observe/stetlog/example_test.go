package stetlog_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe/stetlog"
	"github.com/stet-go/stet/store/memory"
)

func Example() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr { // what differs from one try to the next
			if a.Key == slog.TimeKey || a.Key == "elapsed" {
				return slog.Attr{}
			}
			return a
		},
	}))
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{Observer: stetlog.New(stetlog.Options{Logger: logger})})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()

	op := stet.Op{Scope: "acct_1", Key: "order-1"}
	_, _ = stet.Do(context.Background(), engine, op, func(ctx context.Context) (string, error) {
		stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0) // the processor did not answer
		return "", nil
	})
	// Output:
	// level=WARN msg="stet: marked_unknown" id=9871cf1a6e838be0abab494ebedea06db8fe24f35696f8e450a5d988aff71d8d state=unknown attempt=1 fence=1 reason=declared
}
