package main

import (
	"net"
	"os"
	"strconv"
	"time"
)

// notify sends a state to systemd, if it started the process with Type=notify: sd_notify(3). A
// failure is no reason to end.
func notify(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(state))
	_ = conn.Close()
}

// watchdog returns a channel with a value at half the interval in which systemd expects a sign of
// life, WatchdogSec; nil if it expects none.
func watchdog() (due <-chan time.Time, stop func()) {
	micros, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	if err != nil || micros < 2 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return nil, func() {}
	}
	t := time.NewTicker(time.Duration(micros) * time.Microsecond / 2)
	return t.C, t.Stop
}
