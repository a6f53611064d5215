package stetmcp_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// ledger is a server whose tool writes a row in the transaction of its call.
type ledger struct {
	*mcp.Server
	s    *sqlite.Store
	p    *stetmcp.TxProtector[*sql.Tx]
	then func(context.Context) (*mcp.CallToolResult, any, error)
}

func newLedger(t *testing.T) *ledger {
	s := newSQLite(t)
	e := engineOver(t, s, stet.Options{})
	te := must[*stet.TxEngine[*sql.Tx]](t)(stet.WithTx[*sql.Tx](e, s))
	must[sql.Result](t)(s.DB().Exec("CREATE TABLE payments (cents INTEGER)"))
	l := &ledger{Server: mcp.NewServer(&mcp.Implementation{Name: "ledger"}, nil), s: s}
	l.p = must[*stetmcp.TxProtector[*sql.Tx]](t)(stetmcp.NewTx(te, single()))
	stetmcp.AddToolTx(l.Server, l.p, &mcp.Tool{Name: "pay"}, func(ctx context.Context, _ *mcp.CallToolRequest, in payArgs, tx *sql.Tx) (*mcp.CallToolResult, any, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES (?)", in.Cents); err != nil {
			return nil, nil, err
		}
		if l.then != nil {
			return l.then(ctx)
		}
		return nil, receipt{Number: 1, Cents: in.Cents}, nil
	})
	return l
}

func (l *ledger) rows(t *testing.T) (n int) {
	if err := l.s.DB().QueryRow("SELECT count(*) FROM payments").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestATransactionHasTheWritesAndTheResult(t *testing.T) {
	l := newLedger(t)
	l.AddReceivingMiddleware(l.p.Middleware())
	c := connect(t, l.Server, nil)
	first := callTool(t, c, pay("k1", `{"cents":42}`))
	again := callTool(t, c, pay("k1", `{"cents":42}`))
	if first.IsError || said(t, first) != said(t, again) || again.Meta[replayedName] != true || l.rows(t) != 1 {
		t.Errorf("first %s, again %s, %d rows", said(t, first), said(t, again), l.rows(t))
	}
}

func TestAnErrorRollsBackAndTheRetryRuns(t *testing.T) {
	l := newLedger(t)
	l.AddReceivingMiddleware(l.p.Middleware())
	c := connect(t, l.Server, nil)
	for name, then := range map[string]func(context.Context) (*mcp.CallToolResult, any, error){
		"an error": func(context.Context) (*mcp.CallToolResult, any, error) { return nil, nil, errors.New("no funds") },
		"a protocol": func(context.Context) (*mcp.CallToolResult, any, error) {
			return nil, nil, &jsonrpc.Error{Code: 1, Message: "no funds"}
		},
		"declared": func(ctx context.Context) (*mcp.CallToolResult, any, error) {
			stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
			return nil, map[string]string{"say": "no funds"}, nil
		},
		"a question": func(context.Context) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}, RequestState: "no funds"}, nil, nil
		},
	} {
		key := strings.ReplaceAll(name, " ", "-")
		before := l.rows(t)
		l.then = then
		res, err := c.CallTool(context.Background(), pay(key, `{"cents":42}`))
		if l.rows(t) != before {
			t.Errorf("%s: the write was kept", name)
		}
		if name == "an error" {
			refusedAs(t, res, "not-executed", "not executed", "no funds", "safe to call it again")
		}
		if name == "a protocol" && (err == nil || !strings.Contains(err.Error(), "no funds")) {
			t.Errorf("%s: %v", name, err)
		}
		l.then = nil
		if res := callTool(t, c, pay(key, `{"cents":42}`)); res.IsError || res.Meta[replayedName] != nil || l.rows(t) != before+1 {
			t.Errorf("%s: then %s", name, said(t, res))
		}
	}
}

func TestAFailureThatIsAResultIsCommitted(t *testing.T) {
	l := newLedger(t)
	l.AddReceivingMiddleware(l.p.Middleware())
	c := connect(t, l.Server, nil)
	l.then = func(context.Context) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "declined, and noted"}}}, nil, nil
	}
	for range 2 {
		if res := callTool(t, c, pay("k1", `{"cents":42}`)); !res.IsError || text(res) != "declined, and noted" || l.rows(t) != 1 {
			t.Errorf("got %s, %d rows", said(t, res), l.rows(t))
		}
	}
}

func TestAPermanentErrorRollsBackAndIsReplayed(t *testing.T) {
	l := newLedger(t)
	l.AddReceivingMiddleware(l.p.Middleware())
	c := connect(t, l.Server, nil)
	calls := 0
	l.then = func(context.Context) (*mcp.CallToolResult, any, error) {
		calls++
		return nil, nil, stet.Permanent(errors.New("account closed"))
	}
	for range 2 {
		if res := callTool(t, c, pay("k1", `{"cents":42}`)); !res.IsError || text(res) != "account closed" || l.rows(t) != 0 {
			t.Errorf("got %s, %d rows", said(t, res), l.rows(t))
		}
	}
	if calls != 1 {
		t.Errorf("the tool ran %d times", calls)
	}
}

func TestAToolWithoutItsTransactionIsNotCalled(t *testing.T) {
	l := newLedger(t) // without the middleware
	c := connect(t, l.Server, nil)
	if _, err := c.CallTool(context.Background(), pay("k1", `{"cents":42}`)); err == nil || !strings.Contains(err.Error(), "not executed") {
		t.Errorf("got %v", err)
	}
	other := newLedger(t)
	l.AddReceivingMiddleware(other.p.Middleware()) // a transaction, but of another database
	if _, err := c.CallTool(context.Background(), pay("k2", `{"cents":42}`)); err == nil || l.rows(t)+other.rows(t) != 0 {
		t.Errorf("got %v", err)
	}
}

func TestATransactionNeedsAProtectedTool(t *testing.T) {
	l := newLedger(t)
	defer func() {
		if v := recover(); v == nil || !strings.Contains(v.(string), "look") {
			t.Errorf("got %v", v)
		}
	}()
	stetmcp.AddToolTx(l.Server, l.p, &mcp.Tool{Name: "look", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *mcp.CallToolRequest, any, *sql.Tx) (*mcp.CallToolResult, any, error) {
			return nil, nil, nil
		})
}

// TestOtherToolsOfAServerWithTransactionsHaveNone: their effects are elsewhere, so that they
// must not be called for each try of a commit.
func TestOtherToolsOfAServerWithTransactionsHaveNone(t *testing.T) {
	l := newLedger(t)
	l.AddReceivingMiddleware(l.p.Middleware())
	mails := 0
	mcp.AddTool(l.Server, &mcp.Tool{Name: "mail"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ payArgs) (*mcp.CallToolResult, any, error) {
		mails++
		if must[store.Record](t)(l.s.Read(ctx, stet.FromContext(ctx).ID())).State != store.Running {
			t.Error("the run has no lease")
		}
		return nil, nil, errors.New("no such address")
	})
	c := connect(t, l.Server, nil)
	p := pay("k1", `{"cents":1}`)
	p.Name = "mail"
	for range 2 {
		if res := callTool(t, c, p); text(res) != "no such address" || mails != 1 {
			t.Errorf("got %s after %d mails", said(t, res), mails)
		}
	}
}

// TestAToolOfAnotherServerThatHasTheNameIsNotRunAgain: one Protector is for two servers, and
// the tool of the second writes in no transaction, so a rollback undoes nothing of it.
func TestAToolOfAnotherServerThatHasTheNameIsNotRunAgain(t *testing.T) {
	l := newLedger(t)
	other := mcp.NewServer(&mcp.Implementation{Name: "mailer"}, nil)
	other.AddReceivingMiddleware(l.p.Middleware())
	ran := 0
	mcp.AddTool(other, &mcp.Tool{Name: "pay"}, func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error) {
		ran++
		return nil, nil, errors.New("the bank hung up")
	})
	c := connect(t, other, nil)
	for range 2 {
		if res := callTool(t, c, pay("k1", `{"cents":42}`)); !res.IsError || text(res) != "the bank hung up" || ran != 1 {
			t.Errorf("got %s after %d runs", said(t, res), ran)
		}
	}
}

// TestFixedWiringFindsItsKeysFree: refused calls were not executed.
func TestFixedWiringFindsItsKeysFree(t *testing.T) {
	l, other := newLedger(t), newLedger(t)
	plain := must[*stetmcp.Protector](t)(stetmcp.New(engineOver(t, other.s, stet.Options{}), single()))
	for _, m := range []mcp.Middleware{other.p.Middleware(), plain.Middleware()} {
		wrong := true
		s := mcp.NewServer(&mcp.Implementation{Name: "ledger"}, nil)
		add := l.p
		stetmcp.AddToolTx(s, add, &mcp.Tool{Name: "pay"}, func(context.Context, *mcp.CallToolRequest, payArgs, *sql.Tx) (*mcp.CallToolResult, any, error) {
			wrong = false
			return nil, nil, nil
		})
		s.AddReceivingMiddleware(m)
		if _, err := connect(t, s, nil).CallTool(context.Background(), pay("k1", `{"cents":42}`)); err == nil || !wrong {
			t.Fatal("it ran")
		}
		e := must[*stet.Engine](t)(stet.New(other.s, stet.Options{}))
		defer e.Close()
		rec := must[store.Record](t)(other.s.Read(context.Background(), e.ID("-", "k1")))
		if rec.State.Settled() {
			t.Errorf("the key is used up: %v", rec.State)
		}
	}
}

func TestTransactionThatTheToolFailedIsAborted(t *testing.T) {
	l := newLedger(t)
	runs := 0
	l.AddReceivingMiddleware(l.p.Middleware())
	stetmcp.AddToolTx(l.Server, l.p, &mcp.Tool{Name: "pay"}, func(ctx context.Context, _ *mcp.CallToolRequest, in payArgs, tx *sql.Tx) (*mcp.CallToolResult, any, error) {
		if runs++; runs == 1 {
			_, _ = tx.ExecContext(ctx, "INSERT INTO nowhere VALUES (1)") // and continues
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES (?)", in.Cents)
		return nil, receipt{Number: 1, Cents: in.Cents}, err
	})
	c := connect(t, l.Server, nil)
	if first := callTool(t, c, pay("k1", `{"cents":42}`)); !first.IsError || strings.Contains(said(t, first), `"number"`) || l.rows(t) != 0 {
		t.Errorf("got %s, %d rows", said(t, first), l.rows(t))
	}
	if again := callTool(t, c, pay("k1", `{"cents":42}`)); again.IsError || l.rows(t) != 1 {
		t.Errorf("the retry: %s, %d rows", said(t, again), l.rows(t))
	}
}
