package postgres

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/http"
	"testing"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// The arguments of stet_begin_raw and stet_settle_raw, which packages in other languages compute.
func TestVectorsOfRawArguments(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	vectors := stettest.ReadVectors(t)
	for _, v := range vectors.Locks {
		id := store.Digest(v.Namespace, v.Scope, v.Key)
		scope := store.DigestScope(v.Namespace, v.Scope)
		var print store.Fingerprint
		if n := copy(print[:], v.Fingerprint); n != len(print) {
			t.Fatalf("a fingerprint has %d bytes", n)
		}
		other := &Store{n: s.n}
		other.n.schema, other.n.table = v.Schema, v.Table
		l := other.locks(id, print)
		got := fmt.Sprintf("%s %s %d %d %d %d", id, scope, l.key, l.id, l.finger, l.waiters)
		want := fmt.Sprintf("%s %s %s %d %d %s", v.ID, v.ScopeDigest, v.RunLock, v.PrintLock, v.Print, v.WaitLock)
		if got != want {
			t.Errorf("%s, %s: %s; want %s", v.Scope, v.Key, got, want)
		}
		if v.Schema != defaultSchema || v.Table != defaultTable {
			continue
		}
		err := s.Pool().QueryRow(t.Context(), `SELECT concat_ws(' ', encode(i.id, 'hex'), encode(stet.stet_digest(ARRAY['stet scope 1', convert_to($1, 'UTF8'), convert_to($2, 'UTF8')]), 'hex'),
				stet.stet_number(stet.stet_own('run', ARRAY[i.id])), (stet.stet_number(stet.stet_own('finger', ARRAY[i.id])) << 32 >> 32)::integer,
				(stet.stet_number(stet.stet_digest(ARRAY[$4::bytea])) << 32 >> 32)::integer, stet.stet_wait_lock(i.id))
			FROM (SELECT stet.stet_id($2, $3, $1) AS id) i`, v.Namespace, v.Scope, v.Key, print[:]).Scan(&got)
		if err != nil || got != want {
			t.Errorf("%s, %s in SQL: %s, %v; want %s", v.Scope, v.Key, got, err, want)
		}
	}
	for _, v := range vectors.Heads {
		fields := http.Header{}
		for _, field := range v.Fields {
			fields.Add(field[0], field[1])
		}
		var got []byte
		if err := s.Pool().QueryRow(t.Context(), "SELECT stet.stet_fields($1)", fields).Scan(&got); err != nil || !bytes.Equal(got, v.Head) {
			t.Errorf("%v: head %s (%q), %v; want %s", v.Fields, hex.EncodeToString(got), got, err, hex.EncodeToString(v.Head))
		}
	}
}
