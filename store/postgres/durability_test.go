package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestClaimsAreRefusedWhileTheServerMayLoseCommits(t *testing.T) {
	t.Parallel()
	server := rig.NewPostgres(t, rig.PostgresOptions{})
	for name, c := range map[string]struct{ off, on string }{
		"synchronous_commit of the database": {"ALTER DATABASE postgres SET synchronous_commit = off", "ALTER DATABASE postgres RESET synchronous_commit"},
		"synchronous_commit of the server":   {"ALTER SYSTEM SET synchronous_commit = off", "ALTER SYSTEM RESET synchronous_commit"},
		"fsync":                              {"ALTER SYSTEM SET fsync = off", "ALTER SYSTEM RESET fsync"},
	} {
		url := server.URL("postgres")
		s := open(t, connect(t, url), Options{})
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan struct{})
		go func() { defer close(watched); s.durability.watch(ctx, s, 50*time.Millisecond) }()
		claim := func() error {
			_, err := s.Claim(t.Context(), request(name))
			_, inTx := s.RunTx(t.Context(), request(name+", in a transaction"), keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
				return completed("x"), nil
			})
			if (err == nil) != (inTx == nil) || err != nil && (!errors.Is(err, errLossy) || !errors.Is(err, store.ErrNotDone) || !errors.Is(inTx, errLossy)) {
				t.Errorf("%s: Claim: %v; RunTx: %v", name, err, inTx)
			}
			return err
		}
		running := mustClaim(t, s, request(name+", running"))
		execSQL(t, s.Pool(), c.off)
		execSQL(t, s.Pool(), "SELECT pg_reload_conf()")
		eventually(t, name+": claims are refused", func() bool { return s.durability.refusal() != nil })
		if claim() == nil {
			t.Errorf("%s: a claim was granted", name)
		}
		mustSettle(t, s, running.Claim(), "x") // what runs may end
		execSQL(t, s.Pool(), c.on)
		execSQL(t, s.Pool(), "SELECT pg_reload_conf()")
		eventually(t, name+": claims are granted", func() bool { return s.durability.refusal() == nil })
		if err := claim(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		<-watched
	}
}
