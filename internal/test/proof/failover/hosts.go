package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const hosts = 3

// network is three hosts on a bridge.
type network struct {
	name string
	dir  string
	cmds []*exec.Cmd
}

func split(list string) []string { return strings.Split(list, ",") }

func newNetwork() (*network, error) {
	dir, err := os.MkdirTemp("", "stet-failover-")
	if err != nil {
		return nil, err
	}
	w := &network{name: fmt.Sprintf("stet%d", os.Getpid()%100_000), dir: dir}
	commands := []string{"ip netns add " + w.name + "b", "ip -n " + w.name + "b link add name switch type bridge", "ip -n " + w.name + "b link set switch up"}
	for i := range hosts {
		host := w.host(i)
		commands = append(commands, "ip netns add "+host,
			fmt.Sprintf("ip -n %sb link add v%d type veth peer name eth0 netns %s", w.name, i, host),
			fmt.Sprintf("ip -n %sb link set v%d master switch up", w.name, i),
			fmt.Sprintf("ip -n %s addr add %s/24 dev eth0", host, address(i)),
			"ip -n "+host+" link set lo up", "ip -n "+host+" link set eth0 up")
	}
	for _, c := range commands {
		if err := shell(c); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	return w, nil
}

func shell(command string) error {
	words := strings.Fields(command)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput() //nolint:noctx // it is done at once
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

func (w *network) host(i int) string { return fmt.Sprintf("%sh%d", w.name, i) }

func address(i int) string { return fmt.Sprintf("10.77.0.%d", i+1) }

// link joins a host to the others, or cuts it off.
func (w *network) link(i int, state string) error {
	return shell(fmt.Sprintf("ip -n %sb link set v%d %s", w.name, i, state))
}

// command is a command that runs on a host, and ends with this process.
func (w *network) command(ctx context.Context, i int, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", w.host(i)}, args...)...)
	cmd.Dir = w.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// servers starts a server and a Sentinel on each host; the first is the master.
func (w *network) servers(ctx context.Context, least string) error {
	for i := range hosts {
		server := fmt.Sprintf("bind %s\nport 6379\nprotected-mode no\nsave \"\"\nmin-replicas-to-write %s\nmin-replicas-max-lag 2\nrepl-ping-replica-period 1\n", address(i), least)
		if i > 0 {
			server += "replicaof " + address(0) + " 6379\n"
		}
		sentinel := fmt.Sprintf("bind %s\nport 26379\nprotected-mode no\nsentinel monitor main %s 6379 2\nsentinel down-after-milliseconds main %d\nsentinel failover-timeout main 10000\n", address(i), address(0), downAfter.Milliseconds())
		for name, config := range map[string]string{"redis-server": server, "redis-sentinel": sentinel} {
			file := filepath.Join(w.dir, fmt.Sprintf("%s-%d.conf", name, i))
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				return err
			}
			cmd := w.command(ctx, i, name, file)
			if err := cmd.Start(); err != nil {
				return err
			}
			w.cmds = append(w.cmds, cmd)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if w.ready(ctx) {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("the servers and Sentinels have not found each other within a minute")
		}
	}
}

// ready reports whether replicas and Sentinels know each other.
func (w *network) ready(ctx context.Context) bool {
	says := func(i int, port, want string, args ...string) bool {
		out, err := w.command(ctx, i, append([]string{"redis-cli", "-h", address(i), "-p", port}, args...)...).Output()
		return err == nil && strings.Contains(string(out), want)
	}
	ok := says(0, "6379", "connected_slaves:2", "INFO", "replication")
	for i := range hosts {
		ok = ok && says(i, "26379", "slaves=2,sentinels=3", "INFO", "sentinel")
	}
	for i := 1; i < hosts; i++ {
		ok = ok && says(i, "6379", "master_link_status:up", "INFO", "replication")
	}
	return ok
}

// close ends the started processes, and removes the hosts.
func (w *network) close() error {
	for _, cmd := range w.cmds {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}
	var errs []error
	for i := range hosts {
		errs = append(errs, shell("ip netns del "+w.host(i)))
	}
	return errors.Join(append(errs, shell("ip netns del "+w.name+"b"), os.RemoveAll(w.dir))...)
}
