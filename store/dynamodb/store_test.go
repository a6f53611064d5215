package dynamodb

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

func TestMain(m *testing.M) {
	if args := strings.Fields(os.Getenv(killed)); len(args) == 3 { // a child of TestKilledProcessesRepeatNothing
		if err := serve(args[0], args[1], args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(rig.Main(m))
}

// What tests of stores share.
var (
	keep                            = stettest.Keep
	request, completed              = stettest.Request, stettest.Completed
	mustClaim, mustSettle, mustRead = stettest.Claim, stettest.Settle, stettest.Read
)

// tables numbers the tables of this process.
var tables atomic.Int64

// client returns a client of the server that all tests share. Its requests go through transport, if that is not nil.
func client(t testing.TB, transport http.RoundTripper) *dynamodb.Client {
	t.Helper()
	if transport == nil {
		transport = idle(t)
	}
	return dynamodb.New(dynamodb.Options{
		Region:       "eu-central-1",
		BaseEndpoint: aws.String(rig.Moto(t).URL()),
		HTTPClient:   &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
}

// idle is a transport that closes its connections with the test.
func idle(t testing.TB) *http.Transport {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.MaxIdleConnsPerHost = 64
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// newTable creates a table for a test.
func newTable(t testing.TB, db *dynamodb.Client) string {
	t.Helper()
	name := fmt.Sprintf("stet-%d-%d", os.Getpid(), tables.Add(1))
	if err := CreateTable(t.Context(), db, name); err != nil {
		t.Fatal(err)
	}
	return name
}

// fakeClock is the clock of all hosts.
type fakeClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *fakeClock) advance(_ testing.TB, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// openFake opens a store in a new table, by a clock that need not be right.
func openFake(t testing.TB, c *fakeClock) *Store {
	t.Helper()
	db := client(t, nil)
	s, err := Open(t.Context(), db, Options{Table: newTable(t, db)})
	if err != nil {
		t.Fatal(err)
	}
	s.clock, s.skew, s.grace = c.now, 1e6*time.Hour, 0
	return s
}

func newClock() *fakeClock { return &fakeClock{at: time.Now()} }

// contract is the harness of stores.
func contract(c *fakeClock) storetest.Harness {
	return storetest.Harness{
		Histories: 5,
		New:       func(t testing.TB) store.Store { return openFake(t, c) },
		Advance:   c.advance,
		Damage: func(t testing.TB, s store.Store, id store.ID) {
			d := s.(*Store)
			e := &expression{}
			update := e.update(item{attrOwner: textOf("damaged")})
			update = update[:len(update)-len(" REMOVE ")]
			_, err := d.db.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{TableName: &d.table, Key: keyOf(id), UpdateExpression: &update,
				ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values})
			if err != nil {
				t.Fatal(err)
			}
		},
	}
}

func TestStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, contract(newClock()))
}

// row is the write of a business row of that name. Each call adds one.
func row(table, name string) types.TransactWriteItem {
	return types.TransactWriteItem{Put: &types.Put{TableName: &table, Item: item{attrID: bytesOf([]byte("row " + store.NewOwner().String())), "row": textOf(name)}}}
}

func TestTransactionsKeepTheContract(t *testing.T) {
	db := client(t, nil)
	rows := newTable(t, db)
	storetest.RunTx(t, storetest.TxHarness[*Tx]{
		Harness: contract(newClock()),
		Write: func(_ context.Context, tx *Tx, name string) error {
			tx.Add(row(rows, name))
			return nil
		},
		Rows: func(t testing.TB, _ store.TxStore[*Tx], name string) int {
			got, err := db.Scan(t.Context(), &dynamodb.ScanInput{TableName: &rows, FilterExpression: aws.String("#row = :name"),
				ExpressionAttributeNames: map[string]string{"#row": "row"}, ExpressionAttributeValues: item{":name": textOf(name)}})
			if err != nil {
				t.Fatal(err)
			}
			return len(got.Items)
		},
		Begin: func(t testing.TB, s store.TxStore[*Tx]) (*Tx, func(bool) error) {
			tx := &Tx{}
			return tx, func(commit bool) error {
				if !commit {
					return nil
				}
				return s.(*Store).Commit(t.Context(), tx)
			}
		},
	})
}
