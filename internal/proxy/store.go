package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Store says where records are stored. In the file it is a URL alone, or a mapping. The tag
// "of" names the stores that have an option.
type Store struct {
	URL        string   `yaml:"url"`
	Timeout    Duration `yaml:"timeout"`
	SweepEvery Every    `yaml:"sweep_every"`
	Cache      Size     `yaml:"cache"`
	CacheAge   Duration `yaml:"cache_age"`

	Schema         string `yaml:"schema" of:"postgres"`
	Table          string `yaml:"table" of:"postgres"`
	PgBouncer      bool   `yaml:"pgbouncer" of:"postgres"`
	Writers        int    `yaml:"writers" of:"postgres"`
	Readers        int    `yaml:"readers" of:"postgres sqlite"`
	MaxQueue       int    `yaml:"max_queue" of:"sqlite mysql"`
	MayLoseCommits bool   `yaml:"may_lose_commits" of:"postgres"`

	BusyTimeout Duration `yaml:"busy_timeout" of:"sqlite"`

	Prefix         string   `yaml:"prefix" of:"redis"`
	Replicas       int      `yaml:"replicas" of:"redis"`
	ReplicaTimeout Duration `yaml:"replica_timeout" of:"redis"`
	AllowEviction  bool     `yaml:"allow_eviction" of:"redis"`
	CheckEvery     Every    `yaml:"check_every" of:"redis"`
	CA             string   `yaml:"ca" of:"redis"`
	Certificate    string   `yaml:"certificate" of:"redis"`
	Key            string   `yaml:"key" of:"redis"`
	Outcomes       string   `yaml:"outcomes" of:"redis"`

	MaxRecords int `yaml:"max_records" of:"memory"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Store) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		*s = Store{URL: n.Value}
		return nil
	case yaml.MappingNode:
		type plain Store // without this method
		return n.Decode((*plain)(s))
	}
	return fmt.Errorf("line %d: a list where a URL or a mapping belongs", n.Line)
}

// Kinds of stores.
const (
	kindSQLite    = "sqlite"
	kindPostgres  = "postgres"
	kindMySQL     = "mysql"
	kindRedis     = "redis"
	kindZooKeeper = "zookeeper"
	kindMemory    = "memory"
)

var kindNames = map[string]string{kindSQLite: "an SQLite file", kindPostgres: "PostgreSQL", kindMySQL: "MySQL", kindRedis: "Redis", kindZooKeeper: "ZooKeeper", kindMemory: "memory"}

// Kind is "sqlite", "postgres", "mysql", "redis", "zookeeper" or "memory"; "" if the URL is that of none.
func (s *Store) Kind() string {
	url := cmp.Or(s.URL, DefaultStore)
	scheme, _, isURL := strings.Cut(url, "://")
	switch {
	case url == kindMemory:
		return kindMemory
	case isURL && (scheme == "postgres" || scheme == "postgresql"):
		return kindPostgres
	case isURL && scheme == kindMySQL:
		return kindMySQL
	case isURL && (scheme == "redis" || scheme == "rediss"):
		return kindRedis
	case isURL && scheme == kindZooKeeper:
		return kindZooKeeper
	case isURL || keywords.MatchString(url):
		return ""
	}
	return kindSQLite
}

// keywords matches PostgreSQL's other form of a URL.
var keywords = regexp.MustCompile(`(?:^|\s)(?:host|hostaddr|user|dbname|password|service)\s*=`)

// check returns the errors of the store. They do not quote the URL, which can have a password.
func (s *Store) check() error {
	kind := s.Kind()
	if kind == "" {
		if scheme, _, isURL := strings.Cut(s.URL, "://"); isURL {
			return at("url", "there is no store for %s://; write the path of an SQLite file, a postgres://, mysql://, redis:// or zookeeper:// URL, or memory", scheme)
		}
		return at("url", "that is a list of keywords and values, and no file; write postgres://user:password@host:5432/database")
	}
	errs := []error{s.misfits(kind)}
	bad := func(wrong bool, field, why string) {
		if wrong {
			errs = append(errs, at(field, "%s", why))
		}
	}
	bad(s.CacheAge != 0 && s.Cache == 0, "cache_age", "only with cache, which says how much is kept")
	bad(s.ReplicaTimeout != 0 && s.Replicas == 0, "replica_timeout", "only with replicas, which says how many are waited for")
	bad(s.Outcomes != "" && !slices.Contains([]string{kindPostgres, kindSQLite}, (&Store{URL: s.Outcomes}).Kind()), "outcomes", "write a postgres:// URL or the path of an SQLite file")
	secured := s.CA != "" || s.Certificate != "" || s.Key != ""
	switch {
	case kind != kindRedis || !secured:
	case !strings.HasPrefix(s.URL, "rediss://"):
		bad(true, cmp.Or(named1(s.CA, "ca"), "certificate"), "only with a rediss:// URL, which is Redis with TLS")
	default:
		_, err := clientTLS(s.CA, s.Certificate, s.Key)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// named1 returns name if value is not empty.
func named1(value, name string) string {
	if value == "" {
		return ""
	}
	return name
}

// misfits returns an error for each option that the store does not have.
func (s *Store) misfits(kind string) error {
	var errs []error
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, kinds := f.Tag.Get("yaml"), strings.Fields(f.Tag.Get("of"))
		switch {
		case v.Field(i).IsZero() || len(kinds) == 0 || slices.Contains(kinds, kind):
		case kind == kindPostgres && slices.Contains([]string{"ca", "certificate", "key"}, name):
			errs = append(errs, at(name, "PostgreSQL has it in its URL: …?sslmode=verify-full&sslrootcert=ca.pem&sslcert=client.pem&sslkey=client.key"))
		default:
			var has []string
			for _, k := range kinds {
				has = append(has, kindNames[k])
			}
			errs = append(errs, at(name, "that is an option of %s, and the store is %s; leave it out", strings.Join(has, " and "), kindNames[kind]))
		}
	}
	return errors.Join(errs...)
}

// CheckStore checks the store only.
func (c *Config) CheckStore() error {
	var errs []error
	for _, err := range split(errors.Join(checkFields(reflect.ValueOf(c.Store)), c.Store.check())) {
		errs = append(errs, c.place(err, "store"))
	}
	if len(errs) == 0 {
		return nil
	}
	return c.hide(errors.Join(errs...))
}

// split returns the errors that were joined.
func split(err error) []error {
	if err == nil {
		return nil
	}
	all, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // as errors.Join makes it
	if !ok {
		return []error{err}
	}
	var errs []error
	for _, err := range all.Unwrap() {
		errs = append(errs, split(err)...)
	}
	return errs
}
