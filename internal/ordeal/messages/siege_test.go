package messages

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
)

// idleEnv makes the program a child that has nothing to do, and stops itself if
// it is "stop".
const idleEnv = "STET_ORDEAL_MESSAGES_IDLE"

func idle() {
	what := os.Getenv(idleEnv)
	if what == "" {
		return
	}
	ctx, cancel := child.WithParent(context.Background(), os.Stdin)
	defer cancel()
	ready()
	if what == "stop" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	<-ctx.Done()
	os.Exit(0)
}

func TestOnlyAChildThatHasStoppedCountsAsFrozen(t *testing.T) {
	for what, tt := range map[string]struct {
		patience time.Duration
		want     fault.Point
	}{"stop": {time.Minute, frozen}, "go on": {100 * time.Millisecond, anywhere}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, err := child.Start(t.Context(), child.Command{Env: []string{idleEnv + "=" + what}})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := thaw(t.Context(), c, tt.patience); got != tt.want || err != nil {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
			if !c.Killed() {
				t.Error("it was not killed")
			}
		})
	}
}

func TestKafkaThatDoesNotStartAgainIsAnError(t *testing.T) {
	started, err := startKafka(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := started.(*kafkaServer)
	defer b.close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, port, _ := strings.Cut(other.Addr().String(), ":")
	b.port, _ = strconv.Atoi(port)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := b.restart(ctx); err == nil {
			t.Fatal("it has started on a port that is taken")
		}
	}
	if _, _, err := b.left(ctx); err == nil {
		t.Error("it has messages, and does not run")
	}
}
