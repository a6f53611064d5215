package rig_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/internal/test/rig"
)

// A command, rather than a test, makes a rig of its own.
func ExampleNew() {
	ctx := context.Background()
	r, err := rig.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = r.Close() }()
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := server.Kill(); err != nil {
		fmt.Println(err)
	}
	if err := server.Start(ctx); err != nil {
		fmt.Println(err)
	}
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	fmt.Println("recovered:", conn.Ping(ctx) == nil)
	// Output: recovered: true
}
