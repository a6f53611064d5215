package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/cpu"
	"github.com/stet-go/stet/bench/internal/post"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/rig"
)

// service is a program that receives payments over HTTP.
type service struct {
	name   string // PROGRAM_DRIVER_WAY
	beside string // by hand, with the same driver
	keeps  bool   // a repeated key is not paid twice

	addr   string
	pid    int
	server *rig.PostgresServer
	cost   map[string][]float64 // processor time by request, by kind of requests
	behind map[string][]float64 // the same of PostgreSQL
	done   atomic.Int64         // payments
	keys   []string
	want   [][]byte
	next   atomic.Int64
}

// services are the contenders of the third part. The libraries pay with the same driver.
func services() (all []*service) {
	for _, driver := range []string{"fastapi_psycopg", "fastapi_asyncpg", "fastapi_sqlalchemy", "express_pg"} {
		for _, way := range []string{"bare", "hand", "stet", "statements"} {
			all = append(all, &service{name: driver + "_" + way, beside: driver + "_hand", keeps: way != "bare"})
		}
	}
	return append(all,
		&service{name: "fastapi_psycopg_library", beside: "fastapi_psycopg_hand", keeps: true},
		&service{name: "express_pg_library", beside: "express_pg_hand", keeps: true})
}

func runServices(ctx context.Context, r *rig.Rig, server *rig.PostgresServer, dir string) (err error) {
	chosen, err := regexp.Compile(*which)
	if err != nil {
		return fmt.Errorf("-services: %w", err)
	}
	i, err := interpreters(ctx, dir)
	if err != nil {
		return err
	}
	// Both libraries keep their records in Redis.
	redis, err := r.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}})
	if err != nil {
		return err
	}
	var names []string
	var all []*service
	for _, s := range services() {
		if chosen.MatchString(s.name) {
			s.server = server
			all, names = append(all, s), append(names, s.name)
		}
	}
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	pool, err := prepare(ctx, server.URL(name), names)
	if err != nil {
		return err
	}
	defer pool.Close()
	texts, err := json.Marshal(statements)
	if err != nil {
		return err
	}
	env := []string{"DATABASE_URL=" + server.URL(name), "REDIS_URL=redis://" + redis.Addr(), "TEXTS=" + string(texts), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" + i.path}
	for _, s := range all {
		program, file := i.python, "service.py"
		if strings.HasPrefix(s.name, "express") {
			program, file = i.node, "service.js"
		}
		stop, err := s.start(ctx, env, program, filepath.Join(dir, file))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		defer stop()
	}
	return compare(ctx, pool, all)
}

// interpreted are the programs that run the services.
type interpreted struct {
	python, node string
	path         string // of stet's package for Python
}

// interpreters installs what the services need.
func interpreters(ctx context.Context, dir string) (i interpreted, err error) {
	if err := install(ctx, dir); err != nil {
		return i, err
	}
	if i.python, err = installPython(ctx, dir); err != nil {
		return i, err
	}
	if i.node, err = exec.LookPath("node"); err != nil {
		return i, err
	}
	clients, err := filepath.Abs("../clients")
	if err != nil {
		return i, err
	}
	i.path = filepath.Join(clients, "python")
	if err := os.CopyFS(filepath.Join(dir, "node_modules", "@stet-go", "stet"), os.DirFS(filepath.Join(clients, "js"))); err != nil {
		return i, fmt.Errorf("%w (run it in the folder bench)", err)
	}
	return i, nil
}

// installPython makes a virtual environment with the library, and returns its interpreter.
func installPython(ctx context.Context, dir string) (string, error) {
	python := filepath.Join(dir, "venv", "bin", "python")
	if err := command(ctx, dir, "/usr/bin/python3", "-m", "venv", "--system-site-packages", "venv"); err != nil {
		return "", err
	}
	return python, command(ctx, dir, python, append([]string{"-m", "pip", "install", "-q"}, pipPackages...)...)
}

// start starts the program, and pays the keys that are replayed.
func (s *service) start(ctx context.Context, env []string, program, file string) (stop func(), err error) {
	p, err := child.Start(ctx, child.Command{Path: program, Args: []string{file}, Env: append(env, "WAY="+s.name)})
	if err != nil {
		return nil, err
	}
	s.addr, s.pid, s.cost, s.behind = p.Addr, p.PID(), make(map[string][]float64), make(map[string][]float64)
	if err := s.fill(); err != nil {
		p.Kill()
		return nil, err
	}
	return func() { p.Kill() }, nil
}

func (s *service) fill() error {
	conn, err := post.Dial(s.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	for range known {
		key := stet.NewKey()
		body, err := s.pay(conn, key)
		if err != nil {
			return err
		}
		s.keys, s.want = append(s.keys, key), append(s.want, bytes.Clone(body))
	}
	return nil
}

// pay sends a first request.
func (s *service) pay(conn *post.Conn, key string) ([]byte, error) {
	status, body, err := conn.Post("/payments", key, "X-Account: acct_1\r\n", []byte(`{"amount": 100}`))
	if err == nil && status != 201 {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err == nil {
		s.done.Add(1)
	}
	return body, err
}

// again sends a request that was executed before.
func (s *service) again(conn *post.Conn) error {
	i := int(s.next.Add(1)) % len(s.keys)
	status, body, err := conn.Post("/payments", s.keys[i], "X-Account: acct_1\r\n", []byte(`{"amount": 100}`))
	if err == nil && (status != 201 || !bytes.Equal(body, s.want[i])) {
		err = fmt.Errorf("a replay is %d %s; the first response was %s", status, body, s.want[i])
	}
	return err
}

// measure returns requests per second.
func (s *service) measure(what string, callers int) (float64, error) {
	conns := make([]*post.Conn, callers)
	for i := range conns {
		conn, err := post.Dial(s.addr)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		conns[i] = conn
	}
	before, err := cpu.Used(s.pid)
	if err != nil {
		return 0, err
	}
	serverBefore, err := cpu.Used(s.server.PIDs()...)
	if err != nil {
		return 0, err
	}
	rate, took, err := rounds.Load(callers, *each/2, func(caller int) error {
		if what == "replay" {
			return s.again(conns[caller])
		}
		_, err := s.pay(conns[caller], stet.NewKey())
		return err
	})
	after, uerr := cpu.Used(s.pid)
	serverAfter, serr := cpu.Used(s.server.PIDs()...)
	requests := float64(max(1, len(took)))
	s.cost[what] = append(s.cost[what], float64((after-before).Microseconds())/1000/requests)
	s.behind[what] = append(s.behind[what], float64((serverAfter-serverBefore).Microseconds())/1000/requests)
	return rate, errors.Join(err, uerr, serr)
}

func compare(ctx context.Context, pool *pgxpool.Pool, all []*service) error {
	for _, callers := range []int{1, 16} {
		for _, what := range []string{"first", "replay"} {
			var contenders []rounds.Contender
			for _, s := range all {
				delete(s.cost, what)
				delete(s.behind, what)
				if what == "first" || s.keeps {
					contenders = append(contenders, rounds.Contender{Name: s.name, Measure: func() (float64, error) { return s.measure(what, callers) }})
				}
			}
			rates, err := rounds.Compare(*n, contenders...)
			if err != nil {
				return err
			}
			reportServices(all, rates, what, callers)
		}
	}
	for _, s := range all {
		var rows int64
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM ledger_"+s.name).Scan(&rows); err != nil {
			return err
		}
		if rows != s.done.Load() {
			return fmt.Errorf("%s has %d payments of %d keys", s.name, rows, s.done.Load())
		}
	}
	return nil
}

func reportServices(all []*service, rates map[string][]float64, what string, callers int) {
	cost := make(map[string]float64)
	for _, s := range all {
		if len(rates[s.name]) == 0 {
			continue
		}
		prefix := fmt.Sprintf("bench_sql_%s_%s_%d", s.name, what, callers)
		cost[s.name] = rounds.Median(s.cost[what][1:]) // the first round does not count
		rounds.Figure(prefix, rounds.Median(rates[s.name]), "requests/s")
		rounds.Figure(prefix+"_cpu", cost[s.name], "ms of the service's CPU")
		rounds.Figure(prefix+"_server", rounds.Median(s.behind[what][1:]), "ms of PostgreSQL's CPU")
		if beside := rates[s.beside]; s.name != s.beside && len(beside) > 0 {
			rounds.Figure(prefix+"_vs_hand", rounds.Ratio(rates[s.name], beside), "ratio")
		}
		driver := s.name[:strings.LastIndexByte(s.name, '_')]
		if bare, ok := cost[driver+"_bare"]; ok && s.keeps && what == "first" {
			rounds.Figure(prefix+"_own", 1-bare/cost[s.name], "of its CPU is not the bare service's")
		}
	}
}
