package dynamodb

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// killed is the environment of a child: endpoint, table of records, table of rows, separated by spaces.
const killed = "STET_TEST_DYNAMODB"

const (
	keys  = 12 // operations of the test
	kills = 10
)

// op is an operation of the test. Half of them run in transactions.
func op(i int) stet.Op {
	return stet.Op{Scope: "test", Key: fmt.Sprint("key ", i), Fingerprint: stet.NewFingerprint([]byte("payload"))}
}

// serve is the process that TestKilledProcessesRepeatNothing kills.
func serve(endpoint, records, rows string) error {
	ctx := context.Background()
	db := dynamodb.New(dynamodb.Options{Region: "eu-central-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")})
	s, err := Open(ctx, db, Options{Table: records})
	if err != nil {
		return err
	}
	e, err := stet.New(s, stet.Options{Policy: stet.Policy{Lease: 300 * time.Millisecond}})
	if err != nil {
		return err
	}
	defer e.Close()
	te, err := stet.WithTx(e, s)
	if err != nil {
		return err
	}
	fmt.Println("begun")
	for i := range keys {
		if i%2 == 0 {
			_, err = stet.DoTx(ctx, te, op(i), func(_ context.Context, tx *Tx) (string, error) {
				tx.Add(row(rows, fmt.Sprint(i)))
				return "result", nil
			})
		} else {
			_, err = stet.Do(ctx, e, op(i), func(ctx context.Context) (string, error) {
				_, err := db.PutItem(ctx, &dynamodb.PutItemInput{TableName: &rows, Item: row(rows, fmt.Sprint(i)).Put.Item})
				return "result", err
			})
		}
		if err != nil {
			fmt.Println(i, err)
		}
	}
	return nil
}

func TestKilledProcessesRepeatNothing(t *testing.T) {
	db := client(t, nil)
	records, rows := newTable(t, db), newTable(t, db)
	child := func() (*exec.Cmd, *bufio.Reader) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), killed+"="+strings.Join([]string{aws.ToString(db.Options().BaseEndpoint), records, rows}, " "))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewReader(out)
	}
	for i := range kills {
		cmd, out := child()
		if _, err := out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 7 * time.Millisecond) // not synchronisation: the kill comes at some place
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	s, err := Open(t.Context(), db, Options{Table: records})
	if err != nil {
		t.Fatal(err)
	}
	e, err := stet.New(s, stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	unknown := 0
	for i := range keys {
		want := 1
		id := store.Digest("", "test", fmt.Sprint("key ", i))
		rec, got := mustRead(t, s, id), (*dynamodb.ScanOutput)(nil)
		for before := store.None; got == nil || before != rec.State; rec = mustRead(t, s, id) { // the last request of a child may come late
			before = rec.State
			if got, err = db.Scan(t.Context(), &dynamodb.ScanInput{TableName: &rows, FilterExpression: aws.String("#row = :name"),
				ExpressionAttributeNames: map[string]string{"#row": "row"}, ExpressionAttributeValues: item{":name": textOf(fmt.Sprint(i))}}); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case i%2 == 0 && rec.State == store.Completed:
		case i%2 == 0:
			want = 0
		case rec.State != store.Completed: // running or unknown: its row may be there, once
			unknown++
			want = min(len(got.Items), 1)
		}
		if len(got.Items) != want {
			t.Errorf("operation %d is %v, with %d rows; want %d", i, rec.State, len(got.Items), want)
		}
	}
	t.Logf("%d kills, %d operations, %d of them running or unknown", kills, keys, unknown)
}
