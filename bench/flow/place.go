package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// place has stores of all kinds.
type place struct {
	dir     string
	program string // stet
	rig     *rig.Rig
	server  *rig.PostgresServer
	made    int
}

func newPlace(ctx context.Context) (p *place, err error) {
	p = &place{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.dir, err = os.MkdirTemp("", "stet-flow-"); err != nil {
		return p, err
	}
	if p.program, err = build(ctx, p.dir); err != nil {
		return p, err
	}
	if p.rig, err = rig.New(); err != nil {
		return p, err
	}
	p.server, err = p.rig.StartPostgres(ctx, rig.PostgresOptions{})
	return p, err
}

func (p *place) close() error {
	var err error
	if p.rig != nil {
		err = p.rig.Close()
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// store returns the URL of a new store, as the configuration has it.
func (p *place) store(ctx context.Context, kind string) (string, error) {
	p.made++
	if kind == "sqlite" {
		return filepath.Join(p.dir, "stet-"+strconv.Itoa(p.made)+".db"), nil
	}
	name, err := p.server.CreateDatabase(ctx)
	if err != nil {
		return "", err
	}
	pool, err := pgxpool.New(ctx, p.server.URL(name))
	if err != nil {
		return "", err
	}
	defer pool.Close()
	return p.server.URL(name), postgres.Migrate(ctx, pool, postgres.Options{})
}

// opened is a store in this process.
type opened interface {
	store.Store
	Close() error
}

func open(ctx context.Context, kind, url string) (opened, error) {
	if kind == "sqlite" {
		return sqlite.Open(ctx, url, sqlite.Options{})
	}
	return postgres.Open(ctx, url, postgres.Options{})
}

// serve serves a handler until stop is called.
func serve(ctx context.Context, h http.Handler) (url string, stop func() error, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }() // ends with stop
	return "http://" + l.Addr().String(), func() error {
		err := srv.Close()
		<-ended
		return err
	}, nil
}
