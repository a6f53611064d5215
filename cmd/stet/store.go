package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/mysql"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
	"github.com/stet-go/stet/store/sqlite"
	"github.com/stet-go/stet/store/tier"
)

// storeVariable is the environment variable with the store.
const storeVariable = "STET_STORE"

// storeHelp lists the values of --store.
const storeHelp = "an SQLite file, memory, or a URL ('stet help store')"

// storage is an open store.
type storage struct {
	store.Store
	kind     string // sqlite, postgres, mysql, redis, zookeeper or memory
	place    string // for people; without passwords
	close    func() error
	outcomes *storage // behind Redis; nil: none

	options proxy.Store
}

// openStore opens the store of a valid configuration.
func openStore(ctx context.Context, c proxy.Store) (*storage, error) {
	s := &storage{kind: c.Kind(), options: c, close: func() error { return nil }}
	var err error
	switch s.kind {
	case "memory":
		s.Store, s.place = memory.New(memory.Options{MaxRecords: c.MaxRecords}), "memory"
	case "postgres":
		err = s.openPostgres(ctx)
	case "redis":
		err = s.openRedis(ctx)
	case "zookeeper":
		err = s.openZooKeeper(ctx)
	case "mysql":
		err = s.openMySQL(ctx)
	default:
		var db *sqlite.Store
		if db, err = sqlite.Open(ctx, c.URL, sqlite.Options{BusyTimeout: time.Duration(c.BusyTimeout), MaxQueue: c.MaxQueue, MaxReaders: c.Readers}); err == nil {
			s.Store, s.place, s.close = db, c.URL, db.Close
		}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// postgresOptions converts the configuration of a store in PostgreSQL.
func postgresOptions(c proxy.Store) postgres.Options {
	return postgres.Options{Schema: c.Schema, Table: c.Table, PgBouncer: c.PgBouncer, Writers: c.Writers, Readers: c.Readers,
		MayLoseCommits: c.MayLoseCommits}
}

func (s *storage) openPostgres(ctx context.Context) error {
	db, err := postgres.Open(ctx, s.options.URL, postgresOptions(s.options))
	if err != nil {
		return fmt.Errorf("%w; check the tables with 'stet migrate status'", err)
	}
	c := db.Pool().Config().ConnConfig
	s.Store, s.place, s.close = db, fmt.Sprintf("postgres, database %s on %s", c.Database, c.Host), db.Close
	return nil
}

func (s *storage) openMySQL(ctx context.Context) error {
	db, err := mysql.Open(ctx, s.options.URL, mysql.Options{MaxQueue: s.options.MaxQueue})
	if err != nil {
		return err
	}
	s.Store, s.place, s.close = db, mysqlPlace(s.options.URL), db.Close
	return nil
}

// mysqlPlace describes the database of a URL, without user and password.
func mysqlPlace(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "mysql"
	}
	return fmt.Sprintf("mysql, database %s on %s", strings.TrimPrefix(u.Path, "/"), u.Hostname())
}

// redisClient returns the options for a server or a cluster. The URL is that of rueidis.
func redisClient(c proxy.Store) (rueidis.ClientOption, error) {
	o, err := rueidis.ParseURL(c.URL)
	if err != nil { // the error has the password
		return o, usage{errors.New("--store: the redis URL is malformed; write redis://user:password@host:6379/0, with special characters of the password percent-encoded")}
	}
	if own, err := c.ClientTLS(); own == nil || err != nil {
		return o, misuse(err)
	}
	// The files are read for each connection, so that a renewed certificate needs no restart.
	o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		if config == nil { // of a sentinel
			return d.DialContext(ctx, "tcp", addr)
		}
		own, err := c.ClientTLS()
		if err != nil {
			return nil, misuse(err)
		}
		config = config.Clone()
		config.RootCAs, config.Certificates = own.RootCAs, own.Certificates
		return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, "tcp", addr)
	}
	return o, nil
}

// misuse names the flags of an error of proxy.Store.ClientTLS.
func misuse(err error) error {
	if err == nil {
		return nil
	}
	return usage{fmt.Errorf("--store-ca, --store-certificate and --store-key: %w", err)}
}

func (s *storage) openRedis(ctx context.Context) error {
	o, err := redisClient(s.options)
	if err != nil {
		return err
	}
	conn, err := stetrueidis.Open(o)
	if err != nil {
		return err
	}
	c := s.options
	db, err := redis.New(ctx, conn, redis.Options{Prefix: c.Prefix, AllowEviction: c.AllowEviction, Replicas: c.Replicas,
		ReplicaTimeout: time.Duration(c.ReplicaTimeout), CheckEvery: time.Duration(c.CheckEvery)})
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	s.Store, s.place = db, "redis on "+strings.Join(o.InitAddress, ", ")
	s.close = func() error { return errors.Join(db.Close(), conn.Close()) }
	if c.Outcomes == "" {
		return nil
	}
	if err := s.openOutcomes(ctx, db); err != nil {
		return errors.Join(err, s.close())
	}
	return nil
}

// openOutcomes puts Redis in front of the store of Outcomes.
func (s *storage) openOutcomes(ctx context.Context, claims *redis.Store) (err error) {
	if s.outcomes, err = openStore(ctx, proxy.Store{URL: s.options.Outcomes}); err != nil {
		return fmt.Errorf("--store-outcomes: %w", err)
	}
	switch sql := s.outcomes.Store.(type) {
	case *postgres.Store:
		s.Store, err = tier.New(claims, sql, tier.Options{})
	case *sqlite.Store:
		s.Store, err = tier.New(claims, sql, tier.Options{})
	}
	closeRedis := s.close
	s.place += ", outcomes in " + s.outcomes.place
	s.close = func() error { return errors.Join(closeRedis(), s.outcomes.close()) }
	return err
}

// cached returns the store with its cache, for processes that run operations.
func (s *storage) cached() (store.Store, error) {
	if s.options.Cache == 0 {
		return s.Store, nil
	}
	return cache.New(s.Store, cache.Options{MaxBytes: int64(s.options.Cache), MaxAge: time.Duration(s.options.CacheAge)})
}

// storeFlags are the flags of commands that read an existing store.
type storeFlags struct {
	settings
	format format
}

// add adds the flags to flags of cmd.
func (f *storeFlags) add(cmd *cobra.Command, flags *pflag.FlagSet) {
	f.addStore(flags)
	f.format.add(cmd, flags)
}

// with calls do with the store. It does not create a missing file.
func (f *storeFlags) with(cmd *cobra.Command, do func(*storage) error) (err error) {
	c, err := f.storeConfig()
	if err != nil {
		return err
	}
	return withStore(cmd, c.Store, do)
}

func withStore(cmd *cobra.Command, c proxy.Store, do func(*storage) error) (err error) {
	if c.Kind() == "sqlite" {
		if _, err := os.Stat(c.URL); errors.Is(err, os.ErrNotExist) {
			return usage{fmt.Errorf("there is no file %s: give --store, or set %s", c.URL, storeVariable)}
		}
	}
	s, err := openStore(cmd.Context(), c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return do(s)
}

// warnOf logs the risks of a store for a process that runs operations.
func (s *storage) warnOf(log *slog.Logger) {
	if s.kind == "memory" {
		log.Warn("the store is memory: all records are lost when this process ends")
	}
}

// format is the flag -o: "table" or "json".
type format string

func (f *format) add(cmd *cobra.Command, flags *pflag.FlagSet) {
	*f = "table"
	flags.VarP(f, "output", "o", "table or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	if s != "table" && s != "json" {
		return errors.New("give it table or json")
	}
	*f = format(s)
	return nil
}

func (f *format) json() bool { return *f == "json" }
