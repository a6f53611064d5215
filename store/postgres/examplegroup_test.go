package postgres_test

import (
	"context"
	"fmt"
	"log"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

// Many small operations in one commit. Use TxEngine.Run for the others, which have run before for
// instance, is for TxEngine.Run.
func Example_group() {
	ctx := context.Background()
	r, err := rig.New() // a server for this example
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE points (account text, amount int)"); err != nil {
		log.Fatal(err)
	}
	s, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, s)
	if err != nil {
		log.Fatal(err)
	}

	var ops []stet.Op
	for i := range 3 {
		ops = append(ops, stet.Op{Scope: "game", Key: "round " + strconv.Itoa(i)})
	}
	for range 2 {
		runs := te.RunGroup(ctx, ops, func(ctx context.Context, tx pgx.Tx, i int) (stet.Outcome, error) {
			_, err := tx.Exec(ctx, "INSERT INTO points VALUES ('Emma', $1)", 10*i)
			return stet.Outcome{Body: []byte(strconv.Itoa(10 * i))}, err
		})
		for i, run := range runs {
			if run == nil {
				fmt.Println(ops[i].Key, "is not in the commit")
				continue
			}
			fmt.Printf("%s: %s points\n", ops[i].Key, run.Outcome().Body)
		}
	}
	var rows int
	err = pool.QueryRow(ctx, "SELECT count(*) FROM points").Scan(&rows)
	fmt.Println("rows:", rows, err)
	// Output:
	// round 0: 0 points
	// round 1: 10 points
	// round 2: 20 points
	// round 0 is not in the commit
	// round 1 is not in the commit
	// round 2 is not in the commit
	// rows: 3 <nil>
}
