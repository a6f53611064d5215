package js

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Redis is real. The broker of Kafka is kfake.
func TestConsumersOfQueuesKeepTheirPromises(t *testing.T) {
	t.Parallel()
	dir := newest.dir(t)
	_, url := ledger(t)
	cluster, err := kfake.NewCluster()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	env := []string{
		"STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url,
		"STET_REDIS=" + rig.Redis(t).Addr(), "STET_KAFKA=" + strings.Join(cluster.ListenAddrs(), ","),
	}
	nodeTests(t, dir, env, 4, filepath.Join("test", "queues", "*.test.js"))
}
