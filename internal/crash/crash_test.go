package crash

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/child"
)

const childEnv = "STET_CRASH_TEST"

func TestMain(m *testing.M) {
	child.Main(childEnv, func(ctx context.Context, addr string) error {
		ln, err := Listen(ctx, addr)
		if err != nil {
			return err
		}
		child.Ready(os.Stdout, ln.Addr().String())
		return Serve(ctx, ln, http.NotFoundHandler())
	})
	os.Exit(m.Run())
}

func TestProcessIsFollowedByAnotherAtItsAddress(t *testing.T) {
	var l Lane
	l.Kill() // there is none
	addr := "127.0.0.1:0"
	for range 3 {
		command, err := child.Order(childEnv, addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Start(t.Context(), command); err != nil {
			t.Fatal(err)
		}
		if addr != "127.0.0.1:0" && l.Process().Addr != addr {
			t.Errorf("it listens on %s; want %s", l.Process().Addr, addr)
		}
		addr = l.Process().Addr
		res, err := http.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if l.Kill(); !l.Process().Killed() {
			t.Error(l.Process().End())
		}
	}
	command, _ := child.Order(childEnv, addr)
	if err := l.Start(t.Context(), command); err != nil {
		t.Fatal(err)
	}
	if l.Stop(time.Minute); l.Process().Killed() {
		t.Error("it was killed, and not told to end")
	}
	if command, _ = child.Order(childEnv, "nowhere"); !errors.Is(l.Start(t.Context(), command), child.ErrExited) {
		t.Error("a process that cannot listen has started")
	}
}
