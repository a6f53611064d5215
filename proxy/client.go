package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// clientTLS is the TLS of a client: ca is a PEM file with the authorities that are
// believed, in place of the host's; certificate and key are PEM files of what the client
// shows. Each may be "". An error says which field it is about.
func clientTLS(ca, certificate, key string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, at("ca", "%w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, at("ca", "%s has no certificate in PEM", ca)
		}
	}
	switch {
	case certificate == "" && key == "":
		return config, nil
	case certificate == "":
		return nil, at("certificate", "required: the certificate of the key")
	case key == "":
		return nil, at("key", "required: the key of the certificate")
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, at("certificate", "%w", fmt.Errorf("with its key: %w", err))
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// ClientTLS is the TLS of the connection to a Redis with a rediss:// URL, as CA,
// Certificate and Key say; nil if they say nothing.
func (s *Store) ClientTLS() (*tls.Config, error) {
	if s.CA == "" && s.Certificate == "" && s.Key == "" {
		return nil, nil
	}
	return clientTLS(s.CA, s.Certificate, s.Key)
}
