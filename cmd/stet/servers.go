package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/internal/proxy"
)

// servers are the listeners of a proxy; the last one is for traffic.
type servers struct {
	log    *slog.Logger
	most   int // connections of each
	all    []*http.Server
	cancel []context.CancelFunc // of requests
	gates  []*gate
	secure []*secured
	failed chan error
}

// secured is the TLS of a listener, from the files at their last reading.
type secured struct {
	files *proxy.TLS
	now   atomic.Pointer[tls.Config]
}

// load reads the files. Connections that are opened after the call of use have the new content.
func (s *secured) load() (use func(), err error) {
	config, err := s.files.Config()
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{"h2", "http/1.1"} // http.Server adds them to its own configuration only
	return func() { s.now.Store(config) }, nil
}

// config is the configuration for http.Server.
func (s *secured) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.now.Load(), nil }}
}

// certificates reads the files of all listeners again, for connections from the call of use on.
func (s *servers) certificates() (use func(), err error) {
	var all []func()
	for _, one := range s.secure {
		use, err := one.load()
		if err != nil {
			return nil, err
		}
		all = append(all, use)
	}
	return func() {
		for _, use := range all {
			use()
		}
	}, nil
}

// turnedAway counts the refused connections.
func (s *servers) turnedAway() (n uint64) {
	for _, g := range s.gates {
		n += g.turnedAway()
	}
	return n
}

// start begins to serve at an address.
func (s *servers) start(addr, what string, secure *proxy.TLS, h http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	l := newGate(listener, s.most, s.log.With(slog.String("listener", what)))
	base, cancel := context.WithCancel(context.Background())
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, Protocols: new(http.Protocols),
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		MaxHeaderBytes: maxHeader, ConnState: l.state,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: idleTimeout, WriteByteTimeout: idleTimeout},
		BaseContext: func(net.Listener) context.Context { return base },
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(secure == nil)
	serve, scheme := func() error { return srv.Serve(l) }, "http"
	if secure != nil {
		scheme = "https"
		one := &secured{files: secure}
		use, err := one.load()
		if err != nil {
			cancel()
			return errors.Join(err, l.Close())
		}
		use()
		srv.TLSConfig, s.secure = one.config(), append(s.secure, one)
		serve = func() error { return srv.ServeTLS(l, "", "") }
	}
	s.gates = append(s.gates, l)
	s.all, s.cancel = append(s.all, srv), append(s.cancel, cancel)
	s.log.Info("listening for "+what, slog.String("url", scheme+"://"+l.Addr().String()))
	go func() { // ends with the server
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- err
		}
	}()
	return nil
}

// drain waits for running requests. runs returns the number of protected requests at the
// service; only those can leave an operation unknown.
func (s *servers) drain(patience time.Duration, runs func() int) error {
	last := len(s.all) - 1
	s.log.Info("draining", slog.Duration("at_most", patience))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := s.all[last].Shutdown(ctx)
	switch n := runs(); {
	case err == nil:
	case n > 0:
		return fmt.Errorf("%d operations were cut off after %v; their outcome is unknown until it is verified: %w", n, patience, err)
	default:
		s.log.Warn("connections that had not ended were cut off; no operation was in progress", slog.Duration("after", patience))
	}
	return nil
}

// close ends the remaining connections.
func (s *servers) close() {
	for i, srv := range s.all {
		s.cancel[i]() // ends upgraded connections
		_ = srv.Close()
	}
}
