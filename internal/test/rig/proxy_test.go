package rig

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestPgBouncerPoolsByTransaction(t *testing.T) {
	s := Postgres(t)
	direct := s.Database(t)
	b := PgBouncer(t, s, PgBouncerOptions{Settings: map[string]string{"default_pool_size": "1"}})
	var pid int
	for i := range 5 { // clients that stay
		conn := connect(t, Through(b.Addr(), direct)+"&default_query_exec_mode=exec")
		got := ask[int](t, conn, "SELECT pg_backend_pid()")
		if i > 0 && got != pid {
			t.Fatalf("client %d is served by %d, earlier ones by %d", i, got, pid)
		}
		pid = got
	}
}

// commits are the ways to commit one row.
var commits = map[string]struct {
	command string
	do      func(ctx context.Context, conn *pgx.Conn, n int) error
}{
	"three round trips": {"COMMIT", func(ctx context.Context, conn *pgx.Conn, n int) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return fmt.Errorf("too early: %w", err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", n); err != nil {
			return fmt.Errorf("too early: %w", err)
		}
		return tx.Commit(ctx)
	}},
	"one simple query": {"COMMIT", func(ctx context.Context, conn *pgx.Conn, n int) error {
		_, err := conn.PgConn().Exec(ctx, "BEGIN; INSERT INTO effects VALUES ("+strconv.Itoa(n)+"); COMMIT").ReadAll()
		return err
	}},
	"one batch": {"COMMIT", func(ctx context.Context, conn *pgx.Conn, n int) error {
		var b pgx.Batch
		b.Queue("BEGIN")
		b.Queue("INSERT INTO effects VALUES ($1)", n)
		b.Queue("COMMIT")
		return conn.SendBatch(ctx, &b).Close()
	}},
	"one statement": {"INSERT", func(ctx context.Context, conn *pgx.Conn, n int) error {
		_, err := conn.Exec(ctx, "INSERT INTO effects VALUES ($1)", n)
		return err
	}},
}

func TestLostReplyCommits_LostRequestDoesNot(t *testing.T) {
	url := Postgres(t).Database(t)
	direct := connect(t, url)
	do(t, direct, "CREATE TABLE effects (n int PRIMARY KEY)")
	p := NewPostgresProxy(t, Postgres(t).Addr())
	n := 0
	for name, way := range commits {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				n++
				conn := connect(t, Through(p.Addr(), url))
				before := p.LostReplies()
				p.LoseReplies(way.command, 1)
				err := way.do(t.Context(), conn, n)
				var refused *pgconn.PgError
				if err == nil || errors.As(err, &refused) || p.LostReplies() != before+1 {
					t.Fatalf("error %v, lost %d", err, p.LostReplies()-before)
				}
				if !ask[bool](t, direct, "SELECT EXISTS (SELECT FROM effects WHERE n = "+strconv.Itoa(n)+")") {
					t.Fatal("it was not committed")
				}
				p.LoseReplies("", 0)

				n++
				conn = connect(t, Through(p.Addr(), url))
				before = p.LostRequests()
				p.LoseRequests(way.command, 1)
				err = way.do(t.Context(), conn, n)
				if err == nil || errors.As(err, &refused) || p.LostRequests() != before+1 {
					t.Fatalf("error %v, lost %d requests", err, p.LostRequests()-before)
				}
				if ask[bool](t, direct, "SELECT EXISTS (SELECT FROM effects WHERE n = "+strconv.Itoa(n)+")") {
					t.Fatal("it was committed, though the request was lost")
				}
				p.LoseRequests("", 0)

				n++
				if err := way.do(t.Context(), connect(t, Through(p.Addr(), url)), n); err != nil {
					t.Fatal("when nothing must be lost: ", err)
				}
			}
		})
	}
}

func TestReplyInsideATransactionOrOfAFailureIsNotLost(t *testing.T) {
	url := Postgres(t).Database(t)
	p := NewPostgresProxy(t, Postgres(t).Addr())
	conn := connect(t, Through(p.Addr(), url))
	do(t, conn, "CREATE TABLE effects (n int PRIMARY KEY)")
	p.LoseReplies("INSERT", 1)
	do(t, conn, "BEGIN")
	do(t, conn, "INSERT INTO effects VALUES (1)")
	do(t, conn, "COMMIT")
	if _, err := conn.Exec(t.Context(), "INSERT INTO effects VALUES (1)"); err == nil {
		t.Fatal("no failure")
	}
	p.LoseReplies("COMMIT", 1)
	do(t, conn, "BEGIN")
	do(t, conn, "ROLLBACK")
	if p.LostReplies() != 0 {
		t.Fatalf("%d replies were lost", p.LostReplies())
	}
}

func TestProxyCutsRefusesAndStalls(t *testing.T) {
	for name, start := range map[string]func(testing.TB, string) *Proxy{"any protocol": NewProxy, "PostgreSQL": NewPostgresProxy} {
		t.Run(name, func(t *testing.T) {
			p := start(t, Postgres(t).Addr())
			url := Through(p.Addr(), Postgres(t).URL("postgres"))
			conn := connect(t, url)
			p.Refuse()
			do(t, conn, "SELECT 1")
			if _, err := pgx.Connect(t.Context(), url); err == nil {
				t.Fatal("a refusing proxy takes a connection")
			}
			if err := p.Accept(); err != nil {
				t.Fatal(err)
			}
			p.Cut()
			if err := conn.Ping(t.Context()); err == nil {
				t.Fatal("a connection that was cut answers")
			}

			conn = connect(t, url)
			p.Stall()
			answer := make(chan error, 1)
			go func() { answer <- conn.Ping(context.Background()) }()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if _, err := pgx.Connect(ctx, url); err == nil {
				t.Fatal("a stalled proxy lets a connection through")
			}
			select {
			case err := <-answer:
				t.Fatal("a stalled connection answers: ", err)
			default:
			}
			p.Resume()
			if err := <-answer; err != nil {
				t.Fatal("after Resume: ", err)
			}
		})
	}
}

func TestProxyForwardsLongRepliesUnchanged(t *testing.T) {
	p := NewPostgresProxy(t, Postgres(t).Addr())
	conn := connect(t, Through(p.Addr(), Postgres(t).URL("postgres")))
	var rows, size int
	err := conn.QueryRow(t.Context(), "SELECT count(*), sum(length(x)) FROM (SELECT repeat('x', 10000) FROM generate_series(1, 500)) s(x)").Scan(&rows, &size)
	if err != nil || rows != 500 || size != 5_000_000 {
		t.Fatal(rows, size, err)
	}
	all, err := conn.Query(t.Context(), "SELECT repeat('x', i) FROM generate_series(1, 3000) s(i)")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(all, pgx.RowTo[string])
	if err != nil || len(lines) != 3000 {
		t.Fatal(len(lines), err)
	}
	for i, l := range lines {
		if len(l) != i+1 {
			t.Fatalf("row %d has %d bytes", i, len(l))
		}
	}
	// No tests of the way to the server but this one.
	if n := ask[int](t, conn, "SELECT length('"+lines[2999]+"')"); n != 3000 {
		t.Fatal(n)
	}
}
