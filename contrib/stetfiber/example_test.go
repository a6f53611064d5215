package stetfiber_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetfiber"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// The program of docs/adapters/fiber.md.
func Example() {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{}) // a service needs a durable store, such as store/postgres
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	once, err := stethttp.New(engine, stethttp.Options{Scope: func(r *http.Request) (string, error) {
		account, _ := stetfiber.Context(r).Locals("account").(string)
		return account, nil
	}})
	if err != nil {
		log.Fatal(err)
	}

	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.Locals("account", "acct_1") // stands for authentication
		return c.Next()
	})
	payments := 0
	app.Post("/accounts/:to/payments", stetfiber.Middleware(once), func(c fiber.Ctx) error {
		var payment struct{ Euros int }
		if err := c.Bind().Body(&payment); err != nil {
			return err
		}
		payments++
		return c.Status(fiber.StatusCreated).JSON(fiber.Map{"payment": payments, "to": c.Params("to"), "euros": payment.Euros})
	})

	for range 2 { // a client that sends its request again; a service calls app.Listen
		req := httptest.NewRequest("POST", "/accounts/bob/payments", strings.NewReader(`{"euros":42}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "order-7")
		res, err := app.Test(req)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		fmt.Println(res.StatusCode, string(body), "replayed:", res.Header.Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// 201 {"euros":42,"payment":1,"to":"bob"} replayed: false
	// 201 {"euros":42,"payment":1,"to":"bob"} replayed: true
}

func TestProgramOfThePageIsTheExample(t *testing.T) {
	stettest.SameProgram(t, filepath.Join("..", "..", "docs", "adapters", "fiber.md"), "example_test.go")
}

// The payment and its response are one commit, or nothing is.
func ExampleHandleTx() {
	dir, err := os.MkdirTemp("", "stet")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := sqlite.Open(context.Background(), filepath.Join(dir, "payments.db"), sqlite.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if _, err := store.DB().Exec("CREATE TABLE payments (recipient TEXT)"); err != nil {
		log.Fatal(err)
	}
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	te, err := stet.WithTx(engine, store)
	if err != nil {
		log.Fatal(err)
	}
	once, err := stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		log.Fatal(err)
	}

	app := fiber.New()
	app.Post("/payments/:to", stetfiber.HandleTx(once, func(c fiber.Ctx, tx *sql.Tx) error {
		if _, err := tx.ExecContext(c.Context(), "INSERT INTO payments VALUES (?)", c.Params("to")); err != nil {
			return err // 500, and rolled back
		}
		return c.Status(fiber.StatusCreated).SendString("paid " + c.Params("to"))
	}))
	for range 2 {
		req := httptest.NewRequest("POST", "/payments/bob", nil)
		req.Header.Set("Idempotency-Key", "order-8")
		res, err := app.Test(req)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		fmt.Println(res.StatusCode, string(body))
	}
	var rows int
	err = store.DB().QueryRow("SELECT count(*) FROM payments").Scan(&rows)
	fmt.Println(rows, err)
	// Output:
	// 201 paid bob
	// 201 paid bob
	// 1 <nil>
}
