package rig

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"testing"
)

// motoPython has moto. services.sh installs it.
const motoPython = "/var/cache/stet-tests/moto/bin/python3"

// motoProgram starts the server. moto tests a condition and writes in two steps, so the program lets it
// execute one request at a time: DynamoDB's conditional writes are atomic.
const motoProgram = `
import sys, threading
from moto import server
from moto.dynamodb.responses import DynamoHandler
lock, execute = threading.Lock(), DynamoHandler.call_action
def one_at_a_time(self):
    with lock:
        return execute(self)
DynamoHandler.call_action = one_at_a_time
server.main(["-H", "127.0.0.1", "-p", sys.argv[1]])
`

// MotoServer is a server of moto, which stands in for services of AWS.
type MotoServer struct{ *Server }

// Moto returns a server that the tests of this binary share. It starts when a test first asks for it.
func Moto(t testing.TB) *MotoServer {
	t.Helper()
	return shared.moto.get(t, func(r *Rig) (*MotoServer, error) {
		if _, err := os.Stat(motoPython); err != nil {
			return nil, fmt.Errorf("%w; make services installs it", err)
		}
		s, err := r.add("moto")
		if err != nil {
			return nil, err
		}
		s.spec = spec{
			command: func(port int) ([]string, error) {
				return []string{motoPython, "-c", motoProgram, strconv.Itoa(port)}, nil
			},
			ready: func(port, _ int) bool {
				res, err := http.Get("http://127.0.0.1:" + strconv.Itoa(port) + "/moto-api/") //nolint:noctx // on this host it is at once
				if err != nil {
					return false
				}
				_ = res.Body.Close()
				return res.StatusCode == http.StatusOK
			},
			stop: syscall.SIGTERM,
			quit: syscall.SIGKILL,
		}
		return &MotoServer{s}, s.Start(t.Context())
	})
}

// URL is the endpoint of its services.
func (s *MotoServer) URL() string { return "http://" + s.Addr() }
