package main

import "testing"

func TestRateIsFound_AnyBytesInTheCommand(t *testing.T) {
	const names = `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"` + "\n"
	for _, command := range []string{"EVALSHA d 1 k v", `EVALSHA d 1 k "`, `EVALSHA d 1 k a","b`, "EVALSHA d 1 k \n\"", "EVALSHA \r\n d"} {
		got, err := rate([]byte(names + `"` + command + `","18352.72","10.140","0.888","5.143","27.775","101.887","101.951"` + "\n"))
		if err != nil || got != 18352.72 {
			t.Errorf("%q: %v, %v", command, got, err)
		}
	}
	for _, other := range []string{"", "\n", names, names + `"x","y"`, "ERR\n"} {
		if got, err := rate([]byte(other)); err == nil {
			t.Errorf("%q: %v, and no error", other, got)
		}
	}
}
