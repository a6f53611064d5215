package proxy

import (
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
)

// peer is a client address, or a network of addresses.
type peer struct {
	memory
	from   netip.Prefix
	active int // requests; guarded by Proxy.mu
}

// clientOf returns the address of a request's client; the zero value if it is unknown.
func clientOf(r *http.Request, forwarded bool) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	addr := at.Addr()
	if values := r.Header["X-Forwarded-For"]; forwarded && len(values) > 0 {
		last := values[len(values)-1]
		last = strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])
		if named, err := netip.ParseAddr(last); err == nil {
			addr = named
		}
	}
	return addr.Unmap().WithZone("")
}

// peerOf returns the peer of a request. Requests with an unknown address share one.
func peerOf(r *http.Request, forwarded bool) netip.Prefix {
	addr := clientOf(r, forwarded)
	bits := 32
	if addr.Is6() {
		bits = 64 // one client has that many
	}
	network, _ := addr.Prefix(bits) // the zero value of the zero address
	return network
}

// admitted reports whether there is memory for the request.
func (v *requestState) admitted(from netip.Prefix) bool {
	p := v.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	is := p.peers[from]
	if is == nil {
		is = &peer{memory: memory{limit: p.limits.perPeer()}, from: from}
	}
	v.peer = is
	if !v.take(perRequest) {
		v.peer = nil
		return false
	}
	is.active++
	p.peers[from] = is
	p.active[v] = struct{}{}
	return true
}

// take takes bytes until the request ends. It returns false, and takes none, if that exceeds the
// limit of the peer or of all.
func (v *requestState) take(n int64) bool {
	if !v.peer.take(n) {
		return false
	}
	if !v.proxy.memory.take(n) {
		v.peer.used.Add(-n)
		return false
	}
	v.held.Add(n)
	return true
}

// count adds n bytes; n can be negative.
func (v *requestState) count(n int64) {
	v.proxy.memory.used.Add(n)
	if v.peer != nil {
		v.peer.used.Add(n)
	}
}

// refuseBusy responds to a request for which there is no memory.
func (v *requestState) refuseBusy() {
	p := v.proxy
	n := p.busy.Add(1)
	if p.sayBusy.due() {
		p.o.ErrorLog.Warn("proxy: requests are refused: limits.memory is in use, or limits.memory_per_peer by one client address",
			slog.Int64("bytes", p.memory.used.Load()), slog.Int64("memory", p.memory.limit), slog.Int64("memory_per_peer", p.limits.perPeer()), slog.Int64("so_far", n))
	}
	v.manner.refuse(v, &busy)
}
