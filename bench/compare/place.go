package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

//go:embed versions.txt
var versions string

const ledger = `CREATE TABLE runs (id bigserial PRIMARY KEY, key text NOT NULL, account text NOT NULL);
CREATE TABLE effects (id bigserial PRIMARY KEY, key text NOT NULL, account text NOT NULL)`

// place has the servers and programs that the services need.
type place struct {
	rig       *rig.Rig
	postgres  *rig.PostgresServer
	redis     *rig.RedisServer
	pool      *pgxpool.Pool
	url       string
	dir       string
	packages  string // folder
	services  string // folder of the programs
	clients   string // folder of stet's packages for other languages
	python    string
	stet      string // program
	instances map[string]*[2]*instance
}

// lease is how long a claim lives, if that can be set.
const lease = 2 * time.Second

// newPlace starts the servers, and installs packages into a folder: "" is a new one.
func newPlace(ctx context.Context, chosen []contender, packages string) (_ *place, err error) {
	p := &place{packages: packages, instances: map[string]*[2]*instance{}}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.rig, err = rig.New(); err != nil {
		return nil, err
	}
	if p.dir, err = os.MkdirTemp("", "stet-compare-"); err != nil {
		return nil, err
	}
	if p.postgres, err = p.rig.StartPostgres(ctx, rig.PostgresOptions{}); err != nil {
		return nil, err
	}
	if p.redis, err = p.rig.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}}); err != nil {
		return nil, err
	}
	name, err := p.postgres.CreateDatabase(ctx)
	if err != nil {
		return nil, err
	}
	p.url = p.postgres.URL(name)
	if p.pool, err = pgxpool.New(ctx, p.url); err != nil {
		return nil, err
	}
	if _, err := p.pool.Exec(ctx, ledger); err != nil {
		return nil, err
	}
	if err := postgres.Migrate(ctx, p.pool, postgres.Options{}); err != nil {
		return nil, err
	}
	if p.packages == "" {
		p.packages = p.dir
	}
	if p.packages, err = filepath.Abs(p.packages); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.packages, 0o700); err != nil {
		return nil, err
	}
	return p, p.install(ctx, chosen)
}

func (p *place) close() {
	for _, pair := range p.instances {
		for _, i := range pair {
			i.kill()
		}
	}
	if p.pool != nil {
		p.pool.Close()
	}
	if p.rig != nil {
		_ = p.rig.Close()
	}
	_ = os.RemoveAll(p.dir)
}

// install installs the packages of the chosen contenders' languages into folders of its own.
func (p *place) install(ctx context.Context, chosen []contender) error {
	root, err := p.command(ctx, ".", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/stet-go/stet")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	p.clients = filepath.Join(root, "clients")
	p.services = filepath.Join(p.dir, "services")
	if err := os.CopyFS(p.services, os.DirFS(filepath.Join(root, "bench", "compare", "services"))); err != nil {
		return err
	}
	needs := map[string]bool{}
	for _, c := range chosen {
		needs[filepath.Ext(c.program)] = true
		if c.sidecar {
			needs["sidecar"] = true
		}
	}
	var pip, npm []string
	for line := range strings.Lines(versions) {
		registry, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch registry {
		case "pypi":
			pip = append(pip, name)
		case "npm":
			npm = append(npm, name)
		}
	}
	if needs["sidecar"] {
		p.stet = filepath.Join(p.dir, "stet")
		if _, err := p.command(ctx, root, "go", "build", "-o", p.stet, "./cmd/stet"); err != nil {
			return err
		}
	}
	p.python = filepath.Join(p.packages, "venv", "bin", "python")
	for language, install := range map[string]func() error{".py": func() error { return p.installPython(ctx, pip) }, ".mjs": func() error { return p.installNode(ctx, npm) }} {
		done := filepath.Join(p.packages, "installed"+language)
		if text, err := os.ReadFile(done); !needs[language] || err == nil && string(text) == versions {
			continue
		}
		if err := install(); err != nil {
			return err
		}
		if err := os.WriteFile(done, []byte(versions), 0o600); err != nil {
			return err
		}
	}
	if !needs[".mjs"] {
		return nil
	}
	if p.packages != p.dir {
		if err := os.Symlink(filepath.Join(p.packages, "node_modules"), filepath.Join(p.dir, "node_modules")); err != nil {
			return err
		}
	}
	return p.copyNode()
}

func (p *place) installPython(ctx context.Context, packages []string) error {
	if _, err := p.command(ctx, p.packages, "/usr/bin/python3", "-m", "venv", "venv"); err != nil {
		return err
	}
	_, err := p.command(ctx, p.packages, p.python, append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check"}, packages...)...)
	return err
}

func (p *place) installNode(ctx context.Context, packages []string) error {
	if err := os.WriteFile(filepath.Join(p.packages, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600); err != nil {
		return err
	}
	_, err := p.command(ctx, p.packages, "npm", append([]string{"install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--legacy-peer-deps"}, packages...)...)
	return err
}

// copyNode installs stet's package of the repository.
func (p *place) copyNode() error {
	ours := filepath.Join(p.packages, "node_modules", "@stet-go", "stet")
	if err := os.RemoveAll(ours); err != nil {
		return err
	}
	return os.CopyFS(ours, os.DirFS(filepath.Join(p.clients, "js")))
}

func (p *place) command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, exit.Stderr)
	}
	return string(out), err
}

// effects is how often an operation was executed.
func (p *place) effects(ctx context.Context, key string) (n int, err error) {
	for range 100 {
		if err = p.pool.QueryRow(ctx, "SELECT count(*) FROM effects WHERE key = $1", key).Scan(&n); err == nil {
			return n, nil
		}
		time.Sleep(100 * time.Millisecond) // a scenario has restarted the server
	}
	return 0, err
}

// server is the store of a contender.
func (p *place) server(c contender) *rig.Server {
	if c.store == inRedis {
		return p.redis.Server
	}
	return p.postgres.Server
}
