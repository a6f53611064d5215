package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/stet-go/stet/internal/test/rig"
)

// networkFault is one way in which a network fails.
type networkFault struct {
	name, toxic, stream string
	attributes          func(*rand.Rand) string
}

func nothing(*rand.Rand) string { return "" }

// networkFaults are toxics of toxiproxy. Data that is held back when a timeout
// ends is lost, and the connection with it.
var networkFaults = []networkFault{
	{"replies lost", "timeout", "downstream", nothing},
	{"requests lost", "timeout", "upstream", nothing}, // half-open: sending succeeds, and nothing comes
	{"replies late", "latency", "downstream", func(rng *rand.Rand) string {
		return fmt.Sprintf(`"latency":%d,"jitter":%d`, 20+rng.IntN(200), 20)
	}},
	{"replies cut short", "limit_data", "downstream", func(rng *rand.Rand) string {
		return fmt.Sprintf(`"bytes":%d`, 1+rng.IntN(2000))
	}},
	{"requests cut short", "limit_data", "upstream", func(rng *rand.Rand) string {
		return fmt.Sprintf(`"bytes":%d`, 1+rng.IntN(2000))
	}},
	{"reset", "reset_peer", "downstream", nothing},
}

// Network is the way to a server, on which faults can be laid.
type Network struct{ proxy *toxiproxy.Proxy }

// NewNetwork is the way to a server at an address.
func NewNetwork(server string) (*Network, error) {
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	n := &Network{toxiproxy.NewProxy(api, "server", "127.0.0.1:0", server)}
	return n, n.proxy.Start()
}

// Through returns the place with its addresses over the network.
func (n *Network) Through(p Place) Place {
	if p.Addr != "" {
		p.Addr = n.proxy.Listen
	} else {
		p.URL = rig.Through(n.proxy.Listen, p.URL)
	}
	return p
}

func (n *Network) begin(f networkFault, rng *rand.Rand) error {
	toxic := fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"attributes":{%s}}`, f.name, f.toxic, f.stream, f.attributes(rng))
	_, err := n.proxy.Toxics.AddToxicJson(strings.NewReader(toxic))
	return err
}

// removeWithin is how long a fault may take to end: it waits for the data that it has
// delayed.
const removeWithin = 30 * time.Second

func (n *Network) end(f networkFault) error {
	done := make(chan error, 1)
	go func() { done <- n.proxy.Toxics.RemoveToxic(context.Background(), f.name) }()
	t := time.NewTimer(removeWithin)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return errors.New("the network's fault " + f.name + " does not end")
	}
}

// Close ends it.
func (n *Network) Close() { n.proxy.Stop() }
