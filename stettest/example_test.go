package stettest_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/stettest"
)

// newShop returns the handler of the service, and its database.
func newShop(t *testing.T) (http.Handler, *sql.DB) {
	handler, db, err := open(filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return handler, db
}

func TestPaymentsAreMadeOnce(t *testing.T) {
	handler, db := newShop(t)
	stettest.Check(t, handler, stettest.Service{
		Request: func(n int) *http.Request {
			return httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(fmt.Sprint(n)))
		},
		Effects: func(n int) (count int, err error) {
			err = db.QueryRow("SELECT count(*) FROM payments WHERE amount = ?", fmt.Sprint(n)).Scan(&count)
			return count, err
		},
	})
}
