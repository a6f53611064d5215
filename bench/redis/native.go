package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	random   = "__rand_int__" // redis-benchmark puts 12 digits in its place
	prepared = 60_000         // running records for the settles

	preparedFence = `'\0\0\0\0\0\0\0f'` // of each of them, in Lua
)

// native is how many pairs a second redis-benchmark makes of the store's own
// scripts. It cannot tell the settle which fence the claim got, so it first
// claims keys at random, and then settles records that were prepared.
func (b *bench) native(ctx context.Context, conns, inFlight int) (float64, error) {
	host, port, err := net.SplitHostPort(b.server.Addr())
	if err != nil {
		return 0, err
	}
	bench := func(space int, command []string) (float64, error) {
		n := estimate(inFlight)
		args := []string{"-h", host, "-p", port, "--csv", "-c", strconv.Itoa(conns), "-P", strconv.Itoa(max(inFlight/conns, 1)),
			"-n", strconv.Itoa(n), "-r", strconv.Itoa(space)}
		out, err := exec.CommandContext(ctx, "redis-benchmark", append(args, command...)...).Output()
		if err != nil {
			return 0, fmt.Errorf("redis-benchmark: %w: %s", err, out)
		}
		return rate(out)
	}
	claims, err := bench(1_000_000_000, shaped(b.claim))
	if err != nil {
		return 0, err
	}
	if err := b.prepare(ctx); err != nil {
		return 0, err
	}
	settles, err := bench(prepared, shaped(b.settle))
	if err != nil {
		return 0, err
	}
	return 1 / (1/claims + 1/settles), b.settledSome(ctx, host, port)
}

// settledSome returns an error if redis-benchmark has settled nothing.
func (b *bench) settledSome(ctx context.Context, host, port string) error {
	const script = `for i = 0, 9999 do
		local rec = redis.call('GET', string.format('bench:{%012d}:op', i))
		if rec and rec:byte(2) == 2 then return 'yes' end
	end
	return 'no'`
	out, err := exec.CommandContext(ctx, "redis-cli", "-h", host, "-p", port, "EVAL", script, "0").Output()
	if err != nil || strings.TrimSpace(string(out)) != "yes" {
		return fmt.Errorf("redis-benchmark has settled none of the records that were prepared: %s, %w", out, err)
	}
	return nil
}

// estimate is how many commands are worth sending.
func estimate(inFlight int) int {
	perSecond := 15_000 * min(inFlight, 6)
	return int(each.Seconds()*float64(perSecond))/2 + 1000
}

// shaped is a command of the store with keys at random. Binary arguments are those of the store, but for their NUL bytes,
// which a command line cannot have.
func shaped(command []string) []string {
	n, _ := strconv.Atoi(command[2])
	out := append([]string{}, command[:3]...)
	for _, kind := range []string{"op", "result", "live", "list", "fence"}[:n] {
		out = append(out, "bench:{"+random+"}:"+kind)
	}
	for i, arg := range command[3+n:] {
		if i == 0 {
			arg = "member"
		}
		out = append(out, strings.ReplaceAll(arg, "\x00", "0"))
	}
	return out
}

// prepare makes records that run, with a fence that is known, and their indices.
func (b *bench) prepare(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", b.server.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	w := bufio.NewWriter(conn)
	const script = `local head = '\1\1\0' .. string.rep('p', 81) .. ` + preparedFence + ` .. string.rep('\0', 44)
		for i = ARGV[1], ARGV[2] do
			local n = string.format('%012d', i)
			redis.call('SET', 'bench:{' .. n .. '}:op', head)
			redis.call('ZADD', 'bench:{' .. n .. '}:live', 1, 'member')
		end`
	r := bufio.NewReader(conn)
	for from := 0; from < prepared; from += 10_000 {
		args := []string{"EVAL", script, "0", strconv.Itoa(from), strconv.Itoa(from + 9_999)}
		fmt.Fprintf(w, "*%d\r\n", len(args))
		for _, a := range args {
			fmt.Fprintf(w, "$%d\r\n%s\r\n", len(a), a)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "$-1") {
			return fmt.Errorf("preparing records: %q, %w", line, err)
		}
	}
	return nil
}

// rate is that of redis-benchmark's table: a line of names, and one of values, the first of
// which is the command. That is printed unchanged, and may have quotes and ends of lines in it.
func rate(table []byte) (float64, error) {
	names, values, _ := strings.Cut(strings.TrimSpace(string(table)), "\n")
	fields := strings.Split(values, `","`)
	from := len(fields) - strings.Count(names, `","`)
	if !strings.HasPrefix(names, `"test","rps",`) || from < 1 {
		return 0, fmt.Errorf("redis-benchmark says %q", table)
	}
	return strconv.ParseFloat(fields[from], 64)
}
