package journal_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// An operator reads the pending entries.
func ExampleJournal_List() {
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	j, err := journal.Open(ctx, filepath.Join(dir, "intents.db"), journal.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer j.Close()
	_, _, err = j.Add(ctx, stetclient.Intent{Name: "order 1042, charge", Key: "k", Method: "POST", URL: "https://api.example.com/payments", Created: time.Now()})
	if err != nil {
		fmt.Println(err)
		return
	}
	all, err := j.List(ctx, "", 100)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, in := range all {
		fmt.Println(in.Name, in.Execution, in.Answer != nil)
	}
	// Output: order 1042, charge may have executed false
}
