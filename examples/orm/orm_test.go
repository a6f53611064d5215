package orm

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"

	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	pgdriver "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m).Run()) }

// bank is a fresh database with an account of 100 cents.
type bank struct {
	store  *postgres.Store
	engine *stet.Engine
	db     *sql.DB
}

func newBank(t *testing.T) bank {
	pool, err := pgxpool.New(t.Context(), rig.Postgres(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(t.Context(), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	b := bank{store, engine, stdlib.OpenDBFromPool(pool)}
	t.Cleanup(func() { _ = b.db.Close() })
	b.exec(t, `CREATE TABLE accounts (name text PRIMARY KEY, balance bigint NOT NULL)`)
	b.exec(t, `CREATE TABLE payments (id bigserial PRIMARY KEY, account text NOT NULL, cents bigint NOT NULL)`)
	b.exec(t, `INSERT INTO accounts VALUES ('ada', 100)`)
	return b
}

func (b bank) exec(t *testing.T, query string) {
	t.Helper()
	if _, err := b.db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// holds checks the number of rows, and the balance of the account.
func (b bank) holds(t *testing.T, payments, records, balance int) {
	t.Helper()
	var p, r, left int
	err := b.db.QueryRowContext(t.Context(),
		`SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM stet.records), (SELECT balance FROM accounts)`).Scan(&p, &r, &left)
	if err != nil {
		t.Fatal(err)
	}
	if p != payments || r != records || left != balance {
		t.Fatalf("%d payments, %d records, %d cents left; want %d, %d, %d", p, r, left, payments, records, balance)
	}
}

func (b bank) sqlx() *sqlx.DB { return sqlx.NewDb(b.db, "pgx") }
func (b bank) bun() *bun.DB   { return bun.NewDB(b.db, pgdialect.New()) }

func (b bank) gorm(t *testing.T, o gorm.Config) *gorm.DB {
	db, err := gorm.Open(pgdriver.New(pgdriver.Config{Conn: b.db}), &o)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func operation(key string) stet.Op {
	return stet.Op{Scope: "ada", Key: key, Fingerprint: stet.NewFingerprint([]byte(key))}
}

func TestPaymentAndRecordAreOneTransaction(t *testing.T) {
	for name, pay := range map[string]func(*testing.T, bank) Pay{
		"sql":  func(_ *testing.T, b bank) Pay { return SQL(b.engine, b.store, b.db) },
		"sqlx": func(_ *testing.T, b bank) Pay { return SQLX(b.engine, b.store, b.sqlx()) },
		"gorm": func(t *testing.T, b bank) Pay { return GORM(b.engine, b.store, b.gorm(t, gorm.Config{})) },
		"gorm prepared": func(t *testing.T, b bank) Pay {
			return GORM(b.engine, b.store, b.gorm(t, gorm.Config{PrepareStmt: true}))
		},
		"bun": func(_ *testing.T, b bank) Pay { return Bun(b.engine, b.store, b.bun()) },
		"ent": func(_ *testing.T, b bank) Pay { return Ent(b.engine, b.store, b.db) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBank(t)
			pay := pay(t, b)

			for i := range 3 {
				res, err := pay(t.Context(), operation("k1"), Payment{Account: "ada", Cents: 60})
				if err != nil || res.Value != (Payment{1, "ada", 60}) || res.Replayed != (i > 0) {
					t.Fatalf("payment %d: %+v, %v", i, res, err)
				}
			}
			b.holds(t, 1, 1, 40)

			_, err := pay(t.Context(), operation("k2"), Payment{Account: "ada", Cents: 60})
			if !errors.Is(err, ErrOverdrawn) || stet.KindOf(err) != stet.KindRetryable {
				t.Fatalf("overdrawn: %v", err)
			}
			b.holds(t, 1, 1, 40) // neither the payment nor a record

			b.exec(t, `UPDATE accounts SET balance = 100`)
			res, err := pay(t.Context(), operation("k2"), Payment{Account: "ada", Cents: 60})
			if err != nil || res.Replayed {
				t.Fatalf("retry after the error: %+v, %v", res, err)
			}
			b.holds(t, 2, 2, 40)
		})
	}
}

func TestClaimIsSettledInTheCallersTransaction(t *testing.T) {
	t.Run("sql", func(t *testing.T) { b := newBank(t); settles(t, b, beginSQL(b.db)) })
	t.Run("sqlx", func(t *testing.T) { b := newBank(t); settles(t, b, beginSQLX(b.sqlx())) })
	t.Run("gorm", func(t *testing.T) { b := newBank(t); settles(t, b, beginGORM(b.gorm(t, gorm.Config{}))) })
	t.Run("bun", func(t *testing.T) { b := newBank(t); settles(t, b, beginBun(b.bun())) })
}

func settles[Tx postgres.SQLTx](t *testing.T, b bank, begin func(context.Context) (Tx, error)) {
	run, err := b.engine.Begin(t.Context(), operation("job"))
	if err != nil {
		t.Fatal(err)
	}
	paid := stet.Outcome{Body: []byte("paid")}
	for _, end := range []func(Tx) error{Tx.Rollback, Tx.Commit} {
		b.holds(t, 0, 1, 100)
		tx, err := begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), `INSERT INTO payments (account, cents) VALUES ($1, $2)`, "ada", 1); err != nil {
			t.Fatal(err)
		}
		if err := within(b.engine, postgres.OverSQL(b.store, begin)).Settle(t.Context(), run, tx, paid); err != nil {
			t.Fatal(err)
		}
		rec, err := b.store.Read(t.Context(), b.engine.ID("ada", "job"))
		if err != nil || rec.State != store.Running {
			t.Fatalf("before the end: %v, %v", rec.State, err)
		}
		if err := end(tx); err != nil {
			t.Fatal(err)
		}
	}
	b.holds(t, 1, 1, 100)
	if err := run.Settle(t.Context(), paid); err != nil {
		t.Fatal(err)
	}
	again, err := b.engine.Begin(t.Context(), operation("job"))
	if err != nil || !again.Replayed() || string(again.Outcome().Body) != "paid" {
		t.Fatalf("afterwards: %v", err)
	}
}

// What a generated client executes for an update is sqlgraph.UpdateNode, which
// begins and commits.
func TestEntClientCannotEndTheTransaction(t *testing.T) {
	b := newBank(t)
	tx, err := b.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := sqlgraph.NewUpdateSpec("accounts", []string{"name", "balance"}, sqlgraph.NewFieldSpec("name", field.TypeString))
	spec.Node.ID.Value = "ada"
	spec.SetField("balance", field.TypeInt64, 1)
	spec.ScanValues = func(columns []string) ([]any, error) {
		return []any{new(sql.NullString), new(sql.NullInt64)}[:len(columns)], nil
	}
	spec.Assign = func([]string, []any) error { return nil }
	if err := sqlgraph.UpdateNode(t.Context(), entOver(tx), spec); err != nil {
		t.Fatal(err)
	}
	var rows entsql.Rows
	if err := entOver(tx).Query(t.Context(), `SELECT balance FROM accounts`, []any{}, &rows); err != nil {
		t.Fatal(err)
	}
	if left, err := entsql.ScanInt(&rows); err != nil || left != 1 {
		t.Fatalf("in the transaction: %d, %v", left, err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	b.holds(t, 0, 0, 100)
}
