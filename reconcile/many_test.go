package reconcile_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

// records is how many records the processes find; make reconcile says 100,000.
var records = flag.Int("records", 1000, "number of unknown records")

const processes = 4

func TestFourProcessesResolveEachRecordOnce(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { resolveMany(t, "sqlite", filepath.Join(t.TempDir(), "stet.db")) })
	t.Run("postgres", func(t *testing.T) { resolveMany(t, "postgres", rig.Postgres(t).Database(t)) })
	t.Run("redis", func(t *testing.T) { resolveMany(t, "redis", rig.Redis(t).Addr()) })
}

// load has processes reconcile one store at the same time.
func resolveMany(t *testing.T, kind, where string) {
	t.Helper()
	st, closeStore, err := openStore(ctx, kind, where)
	must(t, err)
	defer closeStore()
	fill(t, st, *records)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	conns := make([]net.Conn, processes)
	for i := range conns {
		p, err := child.Start(ctx, child.Command{Env: []string{memberEnv + "=" + l.Addr().String(), kindEnv + "=" + kind, whereEnv + "=" + where}})
		must(t, err)
		defer p.Stop(time.Second)
		conns[i], err = l.Accept()
		must(t, err)
		defer conns[i].Close()
	}
	began := time.Now()
	for _, c := range conns { // all are ready
		_, err := c.Write([]byte{1})
		must(t, err)
	}
	resolutions := make(map[store.ID]int, *records) // how often each was carried out
	asked, said := 0, 0
	for _, c := range conns {
		var m member
		must(t, json.NewDecoder(c).Decode(&m))
		if m.Err != "" {
			t.Error(m.Err)
		}
		asked, said = asked+m.Asked, said+m.Said
		for text, n := range m.Resolutions {
			id, err := store.ParseID(text)
			must(t, err)
			resolutions[id] += n
		}
	}
	took := time.Since(began)
	n := map[store.State]int{}
	for i := range *records {
		id := number(i)
		rec, err := st.Read(ctx, id)
		must(t, err)
		n[rec.State]++
		want := resolutionOf(id).State()
		if rec.State != want || rec.Attempt != 1 {
			t.Fatalf("%d is %v, attempt %d; want %v", i, rec.State, rec.Attempt, want)
		}
		if result, _ := json.Marshal(id.String()); want == store.Completed && !bytes.Equal(rec.Result.Body, result) || (want == store.Unknown) != (resolutions[id] == 0) {
			t.Fatalf("%d was resolved %d times, with the result %.80q", i, resolutions[id], rec.Result.Body)
		}
	}
	repeated := 0
	for _, n := range resolutions {
		repeated += n - 1
	}
	t.Logf("%d records in %v by %d processes: %v; asked %d times, %d resolutions carried out, of which %d found the same one standing",
		*records, took.Round(time.Millisecond), processes, n, asked, said, repeated)
}

// resolution answers in three ways, always the same for one record.
func resolutionOf(id store.ID) stet.Resolution {
	switch id[31] % 3 {
	case 0:
		result, _ := json.Marshal(id.String())
		return stet.ItHappened(stet.Outcome{Body: result})
	case 1:
		return stet.ItDidNotHappen()
	default:
		return stet.CannotKnow()
	}
}

func number(i int) store.ID { return store.Digest("", "shop", fmt.Sprint(i)) }

// fill adds expired runs to a store.
func fill(t *testing.T, s store.Store, n int) {
	t.Helper()
	next := make(chan int)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := range next {
				var owner store.Owner
				binary.BigEndian.PutUint64(owner[:], uint64(i)+1)
				req := store.ClaimRequest{ID: number(i), Scope: store.DigestScope("", "shop"), Owner: owner, Lease: time.Microsecond}
				if _, err := s.Claim(ctx, req); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	sweeper, ok := s.(store.Sweeper)
	if !ok {
		t.Fatalf("%T does not sweep", s)
	}
	for marked := 0; marked < n; {
		swept, err := sweeper.Sweep(ctx, 1000)
		must(t, err)
		marked += swept.MarkedUnknown
	}
}
