package python

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// newestPackages are tested in the newest versions of PyPI; in those of Debian, too, if it has them.
var newestPackages = []string{"aiokafka", "alembic", "asyncpg", "celery", "django", "djangorestframework", "fastapi", "flask", "greenlet", "mcp>=2", "pika", "psycopg[binary]", "psycopg2-binary", "sqlalchemy", "uvicorn"}

var (
	newestFolder string
	newestOnce   sync.Once
)

// newest is a Python with the newest packages, in a folder that is removed after the last test.
func newest(t *testing.T) string {
	t.Helper()
	newestOnce.Do(func() {
		dir := rig.Folder(t, "python")
		install(t, dir, newestPackages...)
		newestFolder = dir
	})
	if newestFolder == "" {
		t.Fatal("the packages could not be installed; another test says why")
	}
	return filepath.Join(newestFolder, "bin", "python")
}

// TestPythonPackageWorksWithTheNewestVersions runs the tests in tests/newest, which need them, and the tests of tests/ that use drivers and frameworks most.
func TestPythonPackageWorksWithTheNewestVersions(t *testing.T) {
	t.Parallel()
	python := newest(t)
	var kafka sync.Once
	var brokers []string
	for _, classes := range []string{
		"test_django.DjangoView", "test_django.DjangoRest", "test_djangoedges", "test_celery.Workers", "test_pika", "test_aiokafka", "test_agents_mcp", "test_pages", "test_operations", "test_migrate", "test_asgi test_flask test_endings",
		"test_transactions", "test_services.FastapiPsycopgAsync", "test_services.FastapiSqlalchemyAsync", "test_services.FlaskSqlalchemy",
	} {
		t.Run(classes, func(t *testing.T) {
			_, url := ledger(t)
			cmd := commandOf(t, python, url, append([]string{"-m", "unittest"}, strings.Fields(classes)...)...)
			cmd.Env = append(cmd.Env, "STET_TEST_MODE=functions")
			if slices.Contains([]string{"test_celery.Workers", "test_pages", "test_pika"}, classes) {
				cmd.Env = append(cmd.Env, "STET_TEST_BROKER="+rig.RabbitMQ(t).URL())
			}
			if slices.Contains([]string{"test_aiokafka", "test_pages"}, classes) {
				kafka.Do(func() { brokers = rig.KafkaForAll(t, 1).Addrs() })
				cmd.Env = append(cmd.Env, "STET_TEST_KAFKA="+strings.Join(brokers, ","))
			}
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("\nOK\n")) || bytes.Contains(out, []byte("Ran 0 tests")) {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}
