package postgres

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/store"
)

// A run that replaces a record has the scope of its own begin.
func TestBeginReplacesTheScopeOfAForgottenRecord(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	op := opOf("k", "")
	args := rawBegin(s, op)
	tx := beginTx(t, s)
	claim := mustBeginRaw(t, tx, args, "run").claim(args)
	if _, err := tx.Exec(t.Context(), sqlSettleRaw, rawSettle(s, claim)...); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	other := store.DigestScope("", "other")
	execSQL(t, s.Pool(), "UPDATE stet.records SET scope = $1, forget_at = now()", other[:])
	tx, args = beginTx(t, s), rawBegin(s, op)
	claim = mustBeginRaw(t, tx, args, "run").claim(args)
	if _, err := tx.Exec(t.Context(), sqlSettleRaw, rawSettle(s, claim)...); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, tx)
	if rec := mustRead(t, s, claim.ID); rec.Scope != store.DigestScope("", op.Scope) {
		t.Errorf("the record has the scope %x", rec.Scope)
	}
}

func TestBeginDoesNotWaitForALockedRecord(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	for name, set := range map[string]string{"retryable": "state = 4", "forgotten": "state = 2, expires_at = now(), forget_at = now()"} {
		op := opOf(name, "")
		args := rawBegin(s, op)
		tx := beginTx(t, s)
		claim := mustBeginRaw(t, tx, args, "run").claim(args)
		if _, err := tx.Exec(t.Context(), sqlSettleRaw, rawSettle(s, claim)...); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, tx)
		execSQL(t, s.Pool(), "UPDATE stet.records SET "+set+" WHERE id = $1", claim.ID[:])
		tx = beginTx(t, s)
		if _, err := tx.Exec(t.Context(), "SELECT FROM stet.records WHERE id = $1 FOR UPDATE", claim.ID[:]); err != nil {
			t.Fatal(err)
		}
		other := beginTx(t, s)
		if _, err := other.Exec(t.Context(), "SET LOCAL statement_timeout = '2s'"); err != nil {
			t.Fatal(err)
		}
		mustBeginRaw(t, other, rawBegin(s, op), "in_flight")
		for _, open := range []pgx.Tx{tx, other} {
			if err := open.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		mustBeginRaw(t, beginTx(t, s), rawBegin(s, op), "run")
	}
}

func TestUnreadableHeaderFieldsAreST005(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	for _, head := range []string{"\x03", "\x03\xff", "\x03{\"A\":[\"\\udcff\"]}", "\x03" + strings.Repeat("[", 200_000), "\x03[]", "\x03null", "\x03{\"A\":\"x\"}", "\x03{\"A\":[1]}"} {
		_, err := s.Pool().Exec(t.Context(), "SELECT * FROM stet.stet_head($1)", []byte(head))
		wantCode(t, head[:min(len(head), 20)], err, "ST005")
	}
}

// The owner is a part of claims, with which a role could settle.
func TestViewOfOperationsHasNoOwner(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	_, err := s.Pool().Exec(t.Context(), "SELECT owner FROM stet.operations")
	wantCode(t, "owner", err, "42703")
}
