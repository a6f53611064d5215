package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/stetmsg"
)

func TestMain(m *testing.M) {
	switch os.Getenv("CONSUMER") {
	case "":
		os.Exit(rig.Main(m).Run())
	case "dies": // at the worst moment: the outcome is durable, and the broker does not know
		err := consume(context.Background(), os.Getenv("AMQP_URL"), os.Getenv("DATABASE_URL"), func(context.Context, stetmsg.Decision) {
			fmt.Println("killed")
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		})
		fmt.Fprintln(os.Stderr, err)
	default:
		os.Args = os.Args[:1]
		main()
	}
}

// lines runs a consumer until it has decided about so many messages, or dies, and
// returns its output.
func lines(t *testing.T, kind, broker, database string, messages int) (said []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "CONSUMER="+kind, "AMQP_URL="+broker, "DATABASE_URL="+database)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if strings.HasPrefix(lines.Text(), "message: ") {
			if n++; n == messages {
				_ = cmd.Process.Signal(syscall.SIGTERM) // it ends its running operations
			}
		}
	}
	if err := cmd.Wait(); err != nil && messages > 0 {
		t.Fatalf("the consumer ended with %v, having said %q", err, said)
	}
	return said
}

func TestOrderThatComesFiveTimesIsOneRowThoughTheConsumerIsKilled(t *testing.T) {
	server, broker := rig.Postgres(t), rig.RabbitMQ(t)
	database := server.Database(t)
	if err := prepare(t.Context(), broker.URL(), database); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), broker.URL(), database, []string{"1001", "1001", "1001", "1002", "1001", "1001"}); err != nil {
		t.Fatal(err)
	}
	said := slices.Concat(lines(t, "dies", broker.URL(), database, 0), lines(t, "lives", broker.URL(), database, 6))
	for text, want := range map[string]int{
		"handler: a row for order 1001": 1, "handler: a row for order 1002": 1, "killed": 1,
		"message: ack: replayed": 5, "message: ack: handled": 1,
	} {
		got := 0
		for _, line := range said {
			if line == text {
				got++
			}
		}
		if got != want {
			t.Errorf("%q was said %d times, want %d; all that was said: %q", text, got, want, said)
		}
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var rows, orders int
	if err := conn.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT id) FROM orders").Scan(&rows, &orders); err != nil || rows != 2 || orders != 2 {
		t.Errorf("got %d rows for %d orders (%v), want 2 for 2", rows, orders, err)
	}
}
