package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

// TestAShortForm runs all of the command, with few records.
func TestAShortForm(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postgres", "sqlite", "redis"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options{sizes: make(map[string][]int), rounds: 2, turn: 32}
			if err := o.choose(name, "1000,2000", 2000); err != nil {
				t.Fatal(err)
			}
			if err := o.run(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func newRig(t *testing.T) *rig.Rig {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// prepared readies a place for its check.
func prepared(t *testing.T, p *place, err error) *place {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	p.random, p.wal, p.ops = rand.New(rand.NewPCG(1, 1)), make(map[string]int64), make(map[string]int)
	return p
}

// written lets an engine run an operation, and returns its ID.
func written(t *testing.T, st store.Store) store.ID {
	t.Helper()
	engine, err := stet.New(st, stet.Options{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	lease, err := engine.Begin(t.Context(), fresh(7))
	if err == nil {
		err = lease.Settle(t.Context(), receipt(fresh(7).Key))
	}
	if err != nil {
		t.Fatal(err)
	}
	return request(fresh(7)).ID
}

// TestRecordsMadeBySQLAreAsTheStoreWritesThem compares each column of one with that of a
// record that an engine has written: whether it is NULL, and how long it is.
func TestRecordsMadeBySQLAreAsTheStoreWritesThem(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		g, err := startPostgres(t.Context(), newRig(t))
		if err != nil {
			t.Fatal(err)
		}
		p, err := g.fill(t.Context(), 2000, 100)
		p = prepared(t, p, err)
		if err := p.last(t.Context()); err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(t.Context(), g.server.URL("test_1"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.WithoutCancel(t.Context()))
		var list string
		if err := conn.QueryRow(t.Context(), `SELECT string_agg(format('%L || coalesce(pg_column_size(%I)::text, ''NULL'')', attname || ' ', attname), ' || '' '' || ')
			FROM pg_attribute WHERE attrelid = 'stet.records'::regclass AND attnum > 0 AND NOT attisdropped`).Scan(&list); err != nil {
			t.Fatal(err)
		}
		columns := func(id store.ID) (all string) {
			if err := conn.QueryRow(t.Context(), "SELECT "+list+" FROM stet.records WHERE id = $1", id[:]).Scan(&all); err != nil {
				t.Fatal(err)
			}
			return all
		}
		alike(t, columns(written(t, p.st)), columns(request(filled(1)).ID), columns(request(filled(1999)).ID))
	})
	t.Run("sqlite", func(t *testing.T) {
		st, _, closing, err := openSQLite(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer closing()
		first, err := specimen(t.Context(), st)
		if err == nil {
			err = multiplySQLite(t.Context(), st.DB(), first, 2000, 100)
		}
		if err != nil {
			t.Fatal(err)
		}
		var list string
		if err := st.DB().QueryRowContext(t.Context(), `SELECT group_concat(printf('''%s '' || typeof(%s) || coalesce(length(%s), '''')', name, name, name), ' || '' '' || ')
			FROM pragma_table_info('stet_records') WHERE name <> 'fence'`).Scan(&list); err != nil {
			t.Fatal(err)
		}
		columns := func(id store.ID) (all string) {
			if err := st.DB().QueryRowContext(t.Context(), "SELECT "+list+" FROM stet_records WHERE id = ?", id[:]).Scan(&all); err != nil {
				t.Fatal(err)
			}
			return all
		}
		alike(t, columns(written(t, st)), columns(request(filled(1)).ID), columns(request(filled(1999)).ID))
	})
}

func alike(t *testing.T, want string, made ...string) {
	t.Helper()
	if !strings.Contains(want, "scope") || !strings.Contains(want, "body") {
		t.Errorf("the columns are %s", want)
	}
	for _, got := range made {
		if got != want {
			t.Errorf("made by SQL:\n%s\nwritten by an engine:\n%s", got, want)
		}
	}
}

// TestBrokenPromisesAreFound: records that are lost, and expired ones that are replayed, fail the
// command.
func TestBrokenPromisesAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ breaking, want string }{
		"nothing":                  {"SELECT 1", ""},
		"records are lost":         {"DELETE FROM stet_records WHERE fence > 1000", "would have run again"},
		"an outcome is another":    {"UPDATE stet_records SET status = 200 WHERE fence > 1000", "is lost"}, // its checksum is wrong
		"the expired are replayed": {"UPDATE stet_records SET expires = forget", "was replayed"},
		"the expired are lost":     {"DELETE FROM stet_records WHERE fence BETWEEN 2 AND 100", "run again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st, _, closing, err := openSQLite(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			first, err := specimen(t.Context(), st)
			p := prepared(t, &place{size: 2000, expired: 100, st: st, close: closing, result: first.Result}, err)
			if err := multiplySQLite(t.Context(), st.DB(), first, p.size, p.expired); err != nil {
				t.Fatal(err)
			}
			if _, err := st.DB().ExecContext(t.Context(), c.breaking); err != nil {
				t.Fatal(err)
			}
			if err := p.check(t.Context()); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), "broken: ") || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestFlagsThatCannotBeAreRefused(t *testing.T) {
	good := options{rounds: 1, turn: callers}
	for _, c := range []struct {
		stores, sizes string
		change        func(*options)
	}{
		{"mysql", "1000,2000", nil}, {"postgres", "1000", nil}, {"postgres", "1000,20000000", nil}, {"postgres", "1000,x", nil},
		{"redis", "1000,2000000", nil}, {"postgres", "1000,2000", func(o *options) { o.turn = 1 }},
	} {
		o := good
		o.sizes = make(map[string][]int)
		if c.change != nil {
			c.change(&o)
		}
		if err := o.choose(c.stores, c.sizes, 1_000_000); err == nil {
			t.Errorf("-stores %s -sizes %s: taken", c.stores, c.sizes)
		}
	}
}
