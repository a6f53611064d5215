package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/bench/internal/cpu"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
)

// known is how many keys pgbench replays.
const known = 200

// The arguments of a key :k. All are of one scope, whose digest begins each ID. Ways that write one table have
// different IDs.
const (
	pgID          = "decode('5555555555555555' || rpad(lpad(to_hex(:k::bigint), 14, '0'), 48, '7'), 'hex')"
	pgOtherID     = "decode('5555555555555555' || rpad(lpad(to_hex(:k::bigint), 14, '0'), 48, '8'), 'hex')"
	pgScope       = `'\x5555555555555555555555555555555555555555555555555555555555555555'::bytea`
	pgFingerprint = `'\x010102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20'::bytea`
	pgOwner       = "decode(lpad(to_hex(:k::bigint), 32, '0'), 'hex')"
	pgBody        = `'{"payment": 1234, "amount": 100}'::bytea`
)

// calls are the statements of each way between BEGIN and COMMIT: one begins it, one stores the response.
var calls = map[string]struct{ begin, end []string }{
	"bare":  {},
	"hand":  {[]string{of("reserve", ":k::text", pgFingerprint)}, []string{of("store", pgBody, ":k::text")}},
	"hand2": {[]string{of("locked", ":k::text"), of("key", ":k::text", pgFingerprint)}, []string{of("store", pgBody, ":k::text")}},
	"raw": {[]string{gset(of("begin_raw", pgID, pgScope, pgFingerprint, pgOwner, ":k::bigint", "(:k::bigint % 2000000000)::integer", "7"))},
		[]string{of("settle_raw", pgID, pgOwner, ":fence::bigint", ":k::bigint", pgBody)}},
	"psql": {[]string{gset(of("begin", ":k::text", pgFingerprint))}, []string{of("settle", ":claim::text", pgBody)}},
	"statements": {[]string{gset(of("enter", ":k::bigint", "(:k::bigint % 2000000000)::integer", "7", pgOtherID))},
		[]string{of("finish", pgOtherID, pgScope, pgFingerprint, pgOwner, ":fence::bigint", pgBody, ":k::bigint")}},
}

// again are the statements of a replay.
var again = map[string][]string{
	"hand":       {calls["hand"].begin[0], of("stored", ":k::text")},
	"hand2":      calls["hand2"].begin[:1],
	"raw":        calls["raw"].begin,
	"psql":       calls["psql"].begin,
	"statements": calls["statements"].begin,
}

var parameter = regexp.MustCompile(`\$\d`)

// of is a statement with values for its parameters, on one line.
func of(name string, values ...string) string {
	sql := parameter.ReplaceAllStringFunc(statements[name], func(p string) string { return values[p[1]-'1'] })
	return strings.Join(strings.Fields(sql), " ")
}

func gset(sql string) string { return sql + " \\gset" }

// script is a transaction of pgbench. pgbench stops at an error.
func script(way string, replay bool) string {
	lines := []string{`\set k random(1000000, 9000000000000000)`, "BEGIN;", "", "COMMIT;"}
	body := append(append(append([]string(nil), calls[way].begin...), of("insert", ":k::text")), calls[way].end...)
	if replay {
		lines[0], lines[3] = fmt.Sprintf(`\set k random(1, %d)`, known), "ROLLBACK;"
		body = again[way]
	}
	for i, line := range body {
		if !strings.HasSuffix(line, "\\gset") {
			body[i] = line + ";"
		}
	}
	lines[2] = strings.Join(body, "\n")
	return strings.ReplaceAll(strings.Join(lines, "\n"), "{t}", way) + "\n"
}

// pgbench measures the ways by pgbench alone, which has no cost of a driver.
type pgbench struct {
	server  *rig.PostgresServer
	url     string
	dir     string
	program string
	done    map[string]int // transactions with an effect
	cost    map[string][]float64
}

func runPgbench(ctx context.Context, server *rig.PostgresServer, dir string) error {
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	pool, err := prepare(ctx, server.URL(name), ways)
	if err != nil {
		return err
	}
	defer pool.Close()
	program, err := exec.LookPath("pgbench")
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench"); err != nil && len(found) > 0 {
		program, err = found[len(found)-1], nil
	}
	if err != nil {
		return fmt.Errorf("%w; run: make services", err)
	}
	p := &pgbench{server: server, url: server.URL(name), dir: dir, program: program, done: make(map[string]int)}
	for _, way := range ways {
		if err := p.fill(ctx, way); err != nil {
			return err
		}
	}
	for _, callers := range []int{1, 16} {
		if err := p.level(ctx, callers); err != nil {
			return err
		}
	}
	return checkRows(ctx, pool, p.done)
}

func (p *pgbench) level(ctx context.Context, callers int) error {
	p.cost = make(map[string][]float64)
	var all []rounds.Contender
	for _, replay := range []bool{false, true} {
		for _, way := range ways {
			if replay && again[way] == nil {
				continue
			}
			name := way
			if replay {
				name += "_replay"
			}
			all = append(all, rounds.Contender{Name: name, Measure: func() (float64, error) { return p.measure(ctx, name, script(way, replay), callers) }})
		}
	}
	rates, err := rounds.Compare(*n, all...)
	if err != nil {
		return err
	}
	prefix := fmt.Sprintf("bench_sql_pgbench_%d_", callers)
	for _, c := range all {
		rounds.Figure(prefix+c.Name, rounds.Median(rates[c.Name]), "transactions/s")
		rounds.Figure(prefix+c.Name+"_server", rounds.Median(p.cost[c.Name][1:]), "us of the server's CPU")
	}
	figures(prefix, rates)
	return nil
}

// figures are ratios of rates.
func figures(prefix string, rates map[string][]float64) {
	for _, way := range ways {
		for _, beside := range []string{"bare", "hand", "hand2"} {
			for _, replay := range []string{"", "_replay"} {
				if a, b := rates[way+replay], rates[beside+replay]; way != beside && len(a) > 0 && len(b) > 0 {
					rounds.Figure(prefix+way+replay+"_vs_"+beside, rounds.Ratio(a, b), "ratio")
				}
			}
		}
	}
}

var (
	processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
	tps       = regexp.MustCompile(`tps = ([0-9.]+) \(without`)
)

// measure runs a script for a while, and returns transactions per second.
func (p *pgbench) measure(ctx context.Context, name, script string, callers int) (float64, error) {
	before, err := cpu.Used(p.server.PIDs()...)
	if err != nil {
		return 0, err
	}
	count, rate, err := p.run(ctx, name, script, "-T", strconv.Itoa(max(1, int(*each/time.Second))), "-c", strconv.Itoa(callers), "-j", strconv.Itoa(min(2, callers)))
	if err != nil {
		return 0, err
	}
	after, err := cpu.Used(p.server.PIDs()...)
	p.cost[name] = append(p.cost[name], float64((after-before).Microseconds())/float64(count))
	if !strings.HasSuffix(name, "_replay") {
		p.done[name] += count
	}
	return rate, err
}

// run returns how many transactions there were, and how many in a second.
func (p *pgbench) run(ctx context.Context, name, script string, args ...string) (count int, rate float64, err error) {
	file := filepath.Join(p.dir, name+".sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, p.program, append(args, "-n", "-M", "prepared", "-f", file, p.url)...)
	out, err := cmd.CombinedOutput()
	number, speed := processed.FindSubmatch(out), tps.FindSubmatch(out)
	if err != nil || number == nil || speed == nil {
		return 0, 0, fmt.Errorf("pgbench %s: %w: %s", name, err, out)
	}
	if count, err = strconv.Atoi(string(number[1])); err != nil {
		return 0, 0, err
	}
	rate, err = strconv.ParseFloat(string(speed[1]), 64)
	return count, rate, err
}

// fill runs the keys that are replayed.
func (p *pgbench) fill(ctx context.Context, way string) error {
	lines := strings.SplitN(script(way, false), "\n", 2)
	all := "\\set at :at + 1\n\\set k :at\n" + lines[1]
	_, _, err := p.run(ctx, way, all, "-t", strconv.Itoa(known), "-c", "1", "-D", "at=0")
	p.done[way] += known
	return err
}

// checkRows compares effects with transactions, and effects with records: stet's ways write the same table.
func checkRows(ctx context.Context, pool *pgxpool.Pool, done map[string]int) error {
	recorded, effects := 0, 0
	for _, way := range ways {
		var rows int
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM ledger_"+way).Scan(&rows); err != nil {
			return err
		}
		if rows != done[way] {
			return fmt.Errorf("%s has %d rows after %d transactions", way, rows, done[way])
		}
		if way == "raw" || way == "psql" || way == "statements" {
			effects += rows
		}
	}
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM stet.records WHERE state = 2").Scan(&recorded); err != nil {
		return err
	}
	if recorded != effects {
		return fmt.Errorf("%d effects have %d records", effects, recorded)
	}
	return nil
}

func medians(prefix string, rates map[string][]float64) {
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		rounds.Figure(prefix+name, rounds.Median(rates[name]), "transactions/s")
	}
}
