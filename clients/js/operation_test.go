package js

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
)

// Do of Go and operation of Node return each other's values, under the fingerprint of canonical JSON.
func TestDoAndOperationShareKeys(t *testing.T) {
	t.Parallel()
	dir := bare.dir(t)
	pool, url := ledger(t)
	s, err := postgres.New(t.Context(), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	engine := stettest.Engine(t, s, stet.Options{})
	node := func(key string) string {
		return rig.Run(t, dir, []string{"DATABASE_URL=" + strings.Replace(url, "postgres@", "shop@", 1)}, "node", filepath.Join("test", "programs", "operation.js"), key)
	}
	do := func(key string) stet.Result[map[string]string] {
		op := stet.Op{Scope: "acct_1", Key: key, Fingerprint: store.NewCanonicalFingerprint([]byte(`{"amount":42}`))}
		result, err := stet.Do(t.Context(), engine, op, func(context.Context) (map[string]string, error) { return map[string]string{"payment": "77"}, nil })
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	paid, found := strings.CutPrefix(strings.TrimSpace(node("of-node")), "paid ")
	if got := do("of-node"); !found || !got.Replayed || got.Value["payment"] != paid {
		t.Errorf("Go has %v, %v of Node's %q", got.Value, got.Replayed, paid)
	}
	if do("of-go").Replayed {
		t.Error("Go replays a new operation")
	}
	if got := node("of-go"); got != "replayed 77\n" {
		t.Errorf("Node says %q of Go's operation", got)
	}
}
