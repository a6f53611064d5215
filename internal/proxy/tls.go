package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

// clientTLS is the TLS of a client: ca is a PEM file with the authorities that are
// believed, in place of the host's; certificate and key are PEM files of what the client
// shows. Each may be "". An error says which field it is about.
func clientTLS(ca, certificate, key string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if ca != "" {
		if config.RootCAs, err = authorities("ca", ca); err != nil {
			return nil, err
		}
	}
	if certificate != "" || key != "" {
		config.Certificates, err = keyPair(certificate, key)
	}
	return config, err
}

// authorities reads the PEM file that a field names.
func authorities(field, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, at(field, "%w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, at(field, "%s has no certificate in PEM", file)
	}
	return pool, nil
}

// keyPair reads the PEM files of a certificate and its key.
func keyPair(certificate, key string) ([]tls.Certificate, error) {
	switch {
	case certificate == "":
		return nil, at("certificate", "required, and its key")
	case key == "":
		return nil, at("key", "required: the key of the certificate")
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, at("certificate", "with its key: %w", err)
	}
	return []tls.Certificate{pair}, nil
}

// ClientTLS is the TLS of the connection to a Redis with a rediss:// URL, as CA,
// Certificate and Key say; nil if they say nothing.
func (s *Store) ClientTLS() (*tls.Config, error) {
	if s.CA == "" && s.Certificate == "" && s.Key == "" {
		return nil, nil
	}
	return clientTLS(s.CA, s.Certificate, s.Key)
}
