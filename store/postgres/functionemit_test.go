package postgres

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// left are the messages of a store that are due, which are confirmed.
func left(t *testing.T, e *stet.Engine) (all []stet.Message) {
	t.Helper()
	_, err := e.Relay(t.Context(), 100, time.Minute, func(operations [][]stet.Message, told func(int, error)) error {
		for i, messages := range operations {
			all = append(all, messages...)
			told(i, nil)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// letters are messages of every kind.
var letters = []stet.Message{
	{To: "paid", Key: "acct 1", Header: map[string]string{"content-type": "application/json", "Größe": "日本\n\"x\""}, Body: []byte(`{"paid": 42}`)},
	{To: "raw", Body: []byte("\x00\x01\xff")}, {To: "empty"}, {To: "ключ.日本", Body: bytes.Repeat([]byte("line\n"), 100)},
	{To: strings.Repeat("t", 1024), Key: strings.Repeat("k", 5000), Header: map[string]string{strings.Repeat("h", 255): ""}},
}

// emit emits by SQL, and returns the ID.
func emit(ctx context.Context, tx pgx.Tx, claim string, m stet.Message) (id string, err error) {
	var key *string
	if m.Key != "" {
		key = &m.Key
	}
	err = tx.QueryRow(ctx, "SELECT stet.stet_emit($1, $2, $3, $4, $5)", claim, m.To, m.Body, key, m.Header).Scan(&id)
	return id, err
}

func mustEmit(t *testing.T, tx pgx.Tx, claim string, m stet.Message) string {
	t.Helper()
	id, err := emit(t.Context(), tx, claim, m)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// mailing is a store into which messages are emitted by SQL.
type mailing struct {
	*Store
	e *stet.Engine
}

func (m *mailing) settle(t *testing.T, tx pgx.Tx, claim, how string) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 201"+how+")", claim); err != nil {
		t.Fatal(err)
	}
}

// TestMessagesOfSQL are the claims about stet_emit to which broken functions are held, too.
func TestMessagesOfSQL(t *testing.T) {
	t.Parallel()
	broken := theDefect(t)
	s := open(t, broken.database(t), Options{})
	broken.plant(t, s)
	m := &mailing{s, stettest.Engine(t, s, stet.Options{SweepEvery: -1})}
	for claim, test := range map[string]func(*mailing, *testing.T){
		"are those of Go": (*mailing).agree,
		"go with their transaction and their claim":                              (*mailing).forgotten,
		"without an outcome keep a transaction from being committed":             (*mailing).unsettled,
		"are of their operation alone":                                           (*mailing).apart,
		"of a stale claim are refused":                                           (*mailing).refused,
		"are bounded as in Go":                                                   (*mailing).bounded,
		"keep their record until they have left, and its tombstone from then on": (*mailing).kept,
	} {
		t.Run(claim, func(t *testing.T) { test(m, t) })
	}
}

func (m *mailing) agree(t *testing.T) {
	op := opOf("letters", "")
	other := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	if _, err := stet.Do(t.Context(), other, op, func(ctx context.Context) (int, error) {
		for range 4 {
			for _, letter := range letters {
				if err := stet.FromContext(ctx).Emit(letter); err != nil {
					t.Error(err)
				}
			}
		}
		return 1, nil
	}); err != nil {
		t.Fatal(err)
	}
	want := left(t, other)
	tx := beginTx(t, m.Store)
	claim := *mustBegin(t, tx, op, "run").Claim
	for i := range 4 {
		for j, letter := range letters {
			if id := mustEmit(t, tx, claim, letter); id != want[len(letters)*i+j].ID {
				t.Errorf("the ID is %s; want %s", id, want[len(letters)*i+j].ID)
			}
		}
	}
	m.settle(t, tx, claim, "")
	if all := left(t, m.e); len(all) != 0 {
		t.Errorf("before the commit: %+v", all)
	}
	mustCommit(t, tx)
	all := left(t, m.e)
	if len(all) != len(want) {
		t.Fatalf("%d messages; want %d", len(all), len(want))
	}
	for i, got := range all {
		if len(got.Body) == 0 {
			got.Body = want[i].Body
		}
		if len(got.Header) == 0 {
			got.Header = want[i].Header
		}
		if !reflect.DeepEqual(got, want[i]) {
			t.Errorf("message %d: %+v; want %+v", i, got, want[i])
		}
	}
	mustBegin(t, m.Pool(), op, "replay")
	if all := left(t, m.e); len(all) != 0 {
		t.Errorf("of a replay: %+v", all)
	}
}

func (m *mailing) forgotten(t *testing.T) {
	for i, end := range []string{"ROLLBACK", "SELECT stet.stet_release($1)", "SAVEPOINT"} {
		op := opOf(fmt.Sprint("forgotten", i), "")
		tx := beginTx(t, m.Store)
		claim := *mustBegin(t, tx, op, "run").Claim
		switch end {
		case "ROLLBACK":
			mustEmit(t, tx, claim, letters[0])
			_ = tx.Rollback(t.Context())
		case "SAVEPOINT":
			sub, err := tx.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			mustEmit(t, sub, claim, letters[0])
			_ = sub.Rollback(t.Context())
			m.settle(t, tx, claim, "")
			mustCommit(t, tx)
		default:
			mustEmit(t, tx, claim, letters[0])
			if _, err := tx.Exec(t.Context(), end, claim); err != nil {
				t.Fatal(err)
			}
			mustCommit(t, tx)
		}
		if all := left(t, m.e); len(all) != 0 {
			t.Errorf("after %s: %+v", end, all)
		}
		if end == "SAVEPOINT" {
			continue
		}
		tx = beginTx(t, m.Store)
		claim = *mustBegin(t, tx, op, "run").Claim
		m.settle(t, tx, claim, "")
		mustCommit(t, tx)
		if all := left(t, m.e); len(all) != 0 {
			t.Errorf("of the run after %s: %+v", end, all)
		}
	}
}

func (m *mailing) unsettled(t *testing.T) {
	req := request("unsent")
	claim := mustClaim(t, m.Store, req).Claim().String()
	tx := beginTx(t, m.Store)
	mustEmit(t, tx, claim, letters[0])
	wantCode(t, "COMMIT", tx.Commit(t.Context()), "ST003")
	_, err := m.Pool().Exec(t.Context(), "SELECT stet.stet_emit($1, 'a')", claim)
	wantCode(t, "without a transaction", err, "ST003")
	if _, err := m.Pool().Exec(t.Context(), "SELECT stet.stet_emit($1, 'a', 'x'), stet.stet_settle($1, 200)", claim); err != nil {
		t.Errorf("emitted and settled by one statement: %v", err)
	}
	if all := left(t, m.e); len(all) != 1 || all[0].To != "a" {
		t.Errorf("sent: %+v", all)
	}
}

func (m *mailing) apart(t *testing.T) {
	tx := beginTx(t, m.Store)
	a, b := *mustBegin(t, tx, opOf("a", ""), "run").Claim, *mustBegin(t, tx, opOf("b", ""), "run").Claim
	ids := map[string]string{"of a": mustEmit(t, tx, a, stet.Message{To: "of a"}), "of b": mustEmit(t, tx, b, stet.Message{To: "of b"})}
	m.settle(t, tx, a, "")
	m.settle(t, tx, b, "")
	mustCommit(t, tx)
	var due int
	if err := m.Pool().QueryRow(t.Context(), "SELECT count(*) FROM stet.records WHERE relay_due IS NOT NULL").Scan(&due); err != nil || due != 2 {
		t.Errorf("%d operations have messages, %v; want 2", due, err)
	}
	all := left(t, m.e)
	if len(all) != 2 || all[0].ID == all[1].ID || ids[all[0].To] != all[0].ID || ids[all[1].To] != all[1].ID {
		t.Errorf("sent: %+v; want %v", all, ids)
	}
}

func (m *mailing) refused(t *testing.T) {
	req := request("stale")
	old := mustClaim(t, m.Store, req).Claim()
	if err := m.Release(t.Context(), old, keep); err != nil {
		t.Fatal(err)
	}
	_, err := m.Pool().Exec(t.Context(), "SELECT stet.stet_emit($1, 'a')", old.String())
	wantCode(t, "after a release", err, "ST002")
	req.Owner = store.NewOwner()
	now := mustClaim(t, m.Store, req).Claim()
	forged, foreign := now, now
	forged.Owner, foreign.ID = store.NewOwner(), request("other").ID
	for what, c := range map[string]store.Claim{"old": old, "forged": forged, "foreign": foreign} {
		_, err := m.Pool().Exec(t.Context(), "SELECT stet.stet_emit($1, 'a')", c.String())
		wantCode(t, what, err, "ST002")
	}
	mustSettle(t, m.Store, now, "x")
	_, err = m.Pool().Exec(t.Context(), "SELECT stet.stet_emit($1, 'a')", now.String())
	wantCode(t, "settled", err, "ST002")
}

func (m *mailing) bounded(t *testing.T) {
	claim := mustClaim(t, m.Store, request("bounded")).Claim().String()
	tx := beginTx(t, m.Store)
	mustEmit(t, tx, claim, stet.Message{To: "a", Key: "k", Header: map[string]string{"h": "v"}, Body: make([]byte, store.MaxOutbox-4)})
	_, err := emit(t.Context(), tx, claim, stet.Message{To: "a"})
	wantCode(t, "one byte too much", err, "ST001")
	_ = tx.Rollback(t.Context())
	tx = beginTx(t, m.Store)
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_emit($1, 'a') FROM generate_series(1, 1000)", claim); err != nil {
		t.Fatal(err)
	}
	_, err = emit(t.Context(), tx, claim, stet.Message{To: "a"})
	wantCode(t, "one message too many", err, "ST001")
	_ = tx.Rollback(t.Context())
	for _, call := range []string{
		"$1, NULL", "$1, ''", "$1, repeat('x', 1025)", "$1, E'a\\nb'", "$1, E'a\\x7f'", "$1, 'a', header => '[]'", "$1, 'a', header => '{\"a\": 1}'", "$1, 'a', header => '{\"\": \"b\"}'",
		"$1, 'a', header => jsonb_build_object(repeat('x', 256), 'b')", "$1, 'a', header => '{\"a\\tb\": \"c\"}'", "$1 || 'x', 'a'",
	} {
		_, err := m.Pool().Exec(t.Context(), "SELECT stet.stet_emit("+call+")", claim)
		wantCode(t, call, err, "ST001")
	}
}

func (m *mailing) kept(t *testing.T) {
	for _, how := range []string{"", ", gone => true"} {
		op := opOf("kept"+how, "")
		tx := beginTx(t, m.Store)
		claim := *mustBegin(t, tx, op, "run").Claim
		mustEmit(t, tx, claim, letters[0])
		m.settle(t, tx, claim, ", result => '1 hour', tombstone => '400 days'"+how)
		mustCommit(t, tx)
		id := store.Digest("", op.Scope, op.Key)
		if rec := mustRead(t, m.Store, id); !rec.ForgetAt.IsZero() {
			t.Errorf("%s: it is forgotten at %v, with its messages", how, rec.ForgetAt)
		}
		execSQL(t, m.Pool(), "UPDATE stet.records SET expires_at = now() - interval '1 hour', due_at = CASE WHEN due_at IS NOT NULL THEN now() END WHERE id = $1", id[:])
		execSQL(t, m.Pool(), "SELECT stet.stet_sweep()")
		if all := left(t, m.e); len(all) != 1 {
			t.Errorf("%s: sent were %+v", how, all)
		}
		rec := mustRead(t, m.Store, id)
		if in := time.Until(rec.ForgetAt); in < 399*24*time.Hour || in > 401*24*time.Hour {
			t.Errorf("%s: it is forgotten in %v; want 400 days", how, in)
		}
	}
}

// An engine that encrypts takes nothing that anybody could have written there.
func TestEngineThatEncryptsSendsNoMessageOfSQL(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	keys := []stet.EncryptionKey{{Name: "k", Secret: bytes.Repeat([]byte{1}, 32)}}
	if _, err := s.Pool().Exec(t.Context(), "SELECT stet.stet_emit(claim, 'a'), stet.stet_settle(claim, 200) FROM stet.stet_begin('shop', 'k')"); err != nil {
		t.Fatal(err)
	}
	strict := stettest.Engine(t, s, stet.Options{SweepEvery: -1, Encryption: stet.Encryption{Keys: keys}})
	if _, err := strict.Relay(t.Context(), 1, time.Nanosecond, func([][]stet.Message, func(int, error)) error { t.Error("it is sent"); return nil }); err != nil {
		t.Error(err)
	}
	if all := left(t, stettest.Engine(t, s, stet.Options{SweepEvery: -1, Encryption: stet.Encryption{Keys: keys, AcceptPlain: true}})); len(all) != 1 {
		t.Errorf("with AcceptPlain: %+v", all)
	}
}

// A transaction that has emitted holds no lock on the record: heartbeats continue.
func TestHeartbeatsContinue_TransactionHasEmitted(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	c := mustClaim(t, s, request("k")).Claim()
	tx := beginTx(t, s)
	mustEmit(t, tx, c.String(), letters[0])
	if lost, err := s.Extend(t.Context(), []store.Claim{c}, time.Hour); err != nil || len(lost) != 0 {
		t.Errorf("lost are %+v, %v", lost, err)
	}
	if rec := mustRead(t, s, c.ID); rec.LeaseLeft < 50*time.Minute {
		t.Errorf("the lease runs out in %v; want an hour", rec.LeaseLeft)
	}
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 200)", c.String()); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
}

func TestServiceThatEmitsNeedsNoRightOnTheTable(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := open(t, pool, Options{})
	name := "service_" + strings.ReplaceAll(fresh(), "-", "")
	service := role(t, pool, name)
	execSQL(t, pool, "REVOKE EXECUTE ON FUNCTION stet.stet_emit FROM "+name)
	_, err := service.Exec(t.Context(), "SELECT stet.stet_emit('c', 'a')")
	wantCode(t, "without the right", err, codeForbidden)
	execSQL(t, pool, "GRANT EXECUTE ON FUNCTION stet.stet_emit TO "+name)
	tx, err := service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	claim := *mustBegin(t, tx, opOf("k", ""), "run").Claim
	mustEmit(t, tx, claim, letters[0])
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_settle($1, 200)", claim); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	if all := left(t, stettest.Engine(t, s, stet.Options{SweepEvery: -1})); len(all) != 1 {
		t.Errorf("%+v", all)
	}
	for _, sql := range []string{"SELECT FROM stet.records_emitted", "INSERT INTO stet.records_emitted VALUES ('', 1, 1, '')", "SELECT stet.stet_unsent()"} {
		_, err := service.Exec(t.Context(), sql)
		wantCode(t, sql, err, codeForbidden)
	}
}
