package rig

import (
	"net/http"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// PrometheusServer is a Prometheus.
type PrometheusServer struct{ *Server }

// NewPrometheus starts a Prometheus with a configuration and the file rules.yml beside it for this test alone. It ends
// with the test.
func NewPrometheus(t testing.TB, config, rules string) *PrometheusServer {
	t.Helper()
	return alone(t, func(r *Rig) (*PrometheusServer, error) {
		server, err := program("prometheus")
		if err != nil {
			return nil, err
		}
		s, err := r.add("prometheus")
		if err != nil {
			return nil, err
		}
		file := filepath.Join(s.dir, "prometheus.yml")
		for name, text := range map[string]string{file: config, filepath.Join(s.dir, "rules.yml"): rules} {
			if err := r.write(name, []byte(text)); err != nil {
				return nil, err
			}
		}
		s.spec = spec{
			command: func(port int) ([]string, error) {
				return []string{server, "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(s.dir, "data"), "--web.listen-address=127.0.0.1:" + strconv.Itoa(port)}, nil
			},
			ready: func(port, _ int) bool {
				res, err := http.Get("http://127.0.0.1:" + strconv.Itoa(port) + "/-/ready") //nolint:noctx // on this host it is at once
				if err != nil {
					return false
				}
				_ = res.Body.Close()
				return res.StatusCode == http.StatusOK
			},
			stop: syscall.SIGTERM,
			quit: syscall.SIGKILL,
		}
		return &PrometheusServer{s}, s.Start(t.Context())
	})
}

// URL is the address of its API.
func (s *PrometheusServer) URL() string { return "http://" + s.Addr() }
