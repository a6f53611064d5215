package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stet-go/stet/proxy"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
	"github.com/stet-go/stet/store/sqlite"
)

// storeVariable is the variable of the environment that names the store.
const storeVariable = "STET_STORE"

// storeHelp is what --store may be.
const storeHelp = "an SQLite file, a postgres:// or redis:// URL, or memory"

// storage is an open store.
type storage struct {
	store.Store
	kind  string // sqlite, postgres, redis or memory
	place string // for people; without passwords
	close func() error
}

// keywords are those of PostgreSQL's other way to write a URL.
var keywords = regexp.MustCompile(`(?:^|\s)(?:host|hostaddr|user|dbname|password|service)\s*=`)

// openStore opens the store by its name on the command line.
func openStore(ctx context.Context, name string) (*storage, error) {
	name = cmp.Or(name, os.Getenv(storeVariable), proxy.DefaultStore)
	scheme, _, isURL := strings.Cut(name, "://")
	switch {
	case name == "memory":
		return &storage{memory.New(memory.Options{}), "memory", "memory", func() error { return nil }}, nil
	case isURL && (scheme == "postgres" || scheme == "postgresql"):
		s, err := postgres.Open(ctx, name, postgres.Options{})
		if err != nil {
			return nil, fmt.Errorf("%w; are the tables there? 'stet migrate status' knows", err)
		}
		c := s.Pool().Config().ConnConfig
		return &storage{s, "postgres", fmt.Sprintf("postgres, database %s on %s", c.Database, c.Host), s.Close}, nil
	case isURL && (scheme == "redis" || scheme == "rediss"):
		return openRedis(ctx, name)
	case isURL:
		return nil, usage{fmt.Errorf("--store: there is no store for %s://; give %s", scheme, storeHelp)}
	}
	if keywords.MatchString(name) { // and not into the log: it may have a password
		return nil, usage{errors.New("--store: that is a list of keywords and values, and no file; write postgres://user:password@host:5432/database")}
	}
	s, err := sqlite.Open(ctx, name, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	return &storage{s, "sqlite", name, s.Close}, nil
}

// openRedis opens the store of a server, or a cluster, by a URL as rueidis has it.
func openRedis(ctx context.Context, url string) (*storage, error) {
	o, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, usage{errors.New("--store: the redis URL is malformed; write redis://user:password@host:6379/0, with what is special in the password encoded")} // the error has the password
	}
	conn, err := stetrueidis.Open(o)
	if err != nil {
		return nil, err
	}
	s, err := redis.New(ctx, conn, redis.Options{})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	closing := func() error { return errors.Join(s.Close(), conn.Close()) }
	return &storage{s, "redis", "redis on " + strings.Join(o.InitAddress, ", "), closing}, nil
}

// storeFlags are the flags of commands that look at a store that is there.
type storeFlags struct {
	name      string
	namespace string
	format    format
}

func (f *storeFlags) add(flags *pflag.FlagSet) {
	f.addPlace(flags)
	flags.StringVar(&f.namespace, "namespace", "", "the namespace that the service uses")
}

// addPlace adds those of commands for which all namespaces are one.
func (f *storeFlags) addPlace(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "store", "", storeHelp+" (default $"+storeVariable+" or "+proxy.DefaultStore+")")
	f.format.add(flags)
}

// with calls do with the store. A file that is not there is not made: nothing
// could be in it.
func (f *storeFlags) with(cmd *cobra.Command, do func(*storage) error) (err error) {
	name := cmp.Or(f.name, os.Getenv(storeVariable), proxy.DefaultStore)
	if name != "memory" && !strings.Contains(name, "://") && !keywords.MatchString(name) {
		if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
			return usage{fmt.Errorf("there is no file %s; which store? Give --store, or set %s", name, storeVariable)}
		}
	}
	s, err := openStore(cmd.Context(), name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return do(s)
}

// format is the flag -o: "table" or "json".
type format string

func (f *format) add(flags *pflag.FlagSet) {
	*f = "table"
	flags.VarP(f, "output", "o", "table or json")
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
