package main

import (
	"context"
	"net"
	"time"

	fiber2 "github.com/gofiber/fiber/v2"
	idempotency2 "github.com/gofiber/fiber/v2/middleware/idempotency"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	storage "github.com/gofiber/storage/redis/v3"
	goredislib "github.com/redis/go-redis/v9"
)

// Fiber's own middleware, in its two versions, with its own storage on Redis. Its lock is of
// one process; it compares no fingerprints.

const (
	keyHeader = "Idempotency-Key"
	lifetime  = 24 * time.Hour
)

func anyKey(string) error { return nil }

// storage is the same client as that of the others.
func (s *service) storage() *storage.Storage {
	return storage.NewFromConnection(goredislib.NewUniversalClient(s.redisOptions()))
}

type app3 struct{ *fiber.App }

// Serve implements handler.
func (a app3) Serve(ln net.Listener) error {
	return a.Listener(ln, fiber.ListenConfig{DisableStartupMessage: true})
}

func serveFiber3(_ context.Context, s *service) (handler, error) {
	app := fiber.New()
	app.Use(idempotency.New(idempotency.Config{Storage: s.storage(), KeyHeader: keyHeader, KeyHeaderValidate: anyKey, Lifetime: lifetime}))
	app.Post(path, func(c fiber.Ctx) error {
		p := new(payment)
		if err := c.Bind().JSON(p); err != nil {
			return err
		}
		paid, err := s.insert(c.Context(), s.pool, c.Get(keyHeader), p)
		if err != nil {
			return err
		}
		return c.Status(fiber.StatusCreated).JSON(paid)
	})
	return app3{app}, nil
}

type app2 struct{ *fiber2.App }

// Serve implements handler.
func (a app2) Serve(ln net.Listener) error { return a.Listener(ln) }

func serveFiber2(_ context.Context, s *service) (handler, error) {
	app := fiber2.New(fiber2.Config{DisableStartupMessage: true})
	app.Use(idempotency2.New(idempotency2.Config{Storage: s.storage(), KeyHeader: keyHeader, KeyHeaderValidate: anyKey, Lifetime: lifetime}))
	app.Post(path, func(c *fiber2.Ctx) error {
		p := new(payment)
		if err := c.BodyParser(p); err != nil {
			return err
		}
		paid, err := s.insert(c.Context(), s.pool, c.Get(keyHeader), p)
		if err != nil {
			return err
		}
		return c.Status(fiber2.StatusCreated).JSON(paid)
	})
	return app2{app}, nil
}
