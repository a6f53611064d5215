package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/cpu"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
)

// runCost measures the server's processor time of each way's statements alone: many operations in one transaction,
// sent in one batch, without the business write. A busy machine distorts these figures least.
func runCost(ctx context.Context, server *rig.PostgresServer) error {
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	pool, err := prepare(ctx, server.URL(name), ways)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	const operations = 200
	spent := make(map[string][]float64)
	for round := range 40 {
		for _, way := range ways[1:] {
			var b pgx.Batch
			b.Queue("BEGIN")
			for range operations {
				queue(&b, way)
			}
			b.Queue("COMMIT")
			pid := int(conn.Conn().PgConn().PID())
			before, err := cpu.Used(pid)
			if err == nil {
				err = conn.SendBatch(ctx, &b).Close()
			}
			if err != nil {
				return err
			}
			after, err := cpu.Used(pid)
			if err != nil {
				return err
			}
			if round > 1 { // plans are made in the first ones
				spent[way] = append(spent[way], float64((after-before).Nanoseconds())/1000/operations)
			}
		}
	}
	for _, way := range ways[1:] {
		slices.Sort(spent[way])
		rounds.Figure("bench_sql_cost_"+way, spent[way][len(spent[way])/4], "us of the server's CPU for the statements of an operation")
	}
	return nil
}

// queue adds an operation with a new key. Statements that need a value of the one before are joined with it.
func queue(b *pgx.Batch, way string) {
	id, fingerprint, owner, body := random(32), append([]byte{1}, random(32)...), random(16), []byte(`{"payment": 1234, "amount": 100}`)
	lock, key := int64(binary.BigEndian.Uint64(id)), stet.NewKey()
	text := func(name string) string { return strings.ReplaceAll(statements[name], "{t}", way) }
	switch way {
	case "hand":
		b.Queue(text("reserve"), key, fingerprint)
		b.Queue(text("store"), body, key)
	case "hand2":
		b.Queue(text("locked"), key)
		b.Queue(text("key"), key, fingerprint)
		b.Queue(text("store"), body, key)
	case "raw":
		b.Queue(text("begin_raw"), id, append(id[:8:8], random(24)...), fingerprint, owner, lock, int32(lock), int32(7))
		fence := strings.NewReplacer("$3", "(SELECT r.fence FROM stet.records r WHERE r.id = $1)", "$4", "$3", "$5", "$4")
		b.Queue(fence.Replace(text("settle_raw")), id, owner, lock, body)
	case "psql":
		b.Queue("SELECT stet.stet_settle(b.claim, 201, NULL, 'application/json', $3) FROM stet.stet_begin('acct_1', $1, $2, name => 'POST /payments') b", key, fingerprint, body)
	case "statements":
		b.Queue(text("enter"), lock, int32(lock), int32(7), id)
		b.Queue(text("finish"), id, random(32), fingerprint, owner, lock>>1&(1<<62-1)+1, body, lock)
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}
