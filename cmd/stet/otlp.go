package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	otlpTimeout  = 10 * time.Second // of one request, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise
	otlpAttempts = 5
	otlpBackoff  = time.Second // before the second attempt; doubled before each further one
)

// collector sends spans to a collector: OTLP over HTTP, encoded with protobuf. It replaces
// otlptracehttp, which imports gRPC and html/template. With them, the linker retains every
// exported method, and the program has 14 MB more.
type collector struct {
	client  *http.Client
	url     string
	host    string // for errors: the URL may have a password
	header  http.Header
	gzip    bool
	backoff time.Duration
	ctx     context.Context // ends with Stop
	stop    context.CancelFunc
}

// otlpVariable returns a variable of the OpenTelemetry specification: the one for traces, or
// the one for all signals.
func otlpVariable(name string) string {
	return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_"+name), os.Getenv("OTEL_EXPORTER_OTLP_"+name))
}

// newCollector reads the OTEL_EXPORTER_OTLP_ variables.
func newCollector() (*collector, error) {
	c := &collector{backoff: otlpBackoff, header: http.Header{"Content-Type": {"application/x-protobuf"}, "User-Agent": {"stet"}}}
	c.url = os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
	if c.url == "" {
		c.url = strings.TrimRight(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), "/") + "/v1/traces"
	}
	u, err := url.Parse(c.url)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT: must be an http or https URL") // it may have a password
	}
	c.host = u.Host
	if p := otlpVariable("PROTOCOL"); p != "" && p != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q: must be http/protobuf", p)
	}
	for pair := range strings.SplitSeq(otlpVariable("HEADERS"), ",") {
		name, value, ok := strings.Cut(pair, "=")
		plain, err := url.PathUnescape(strings.TrimSpace(value))
		if strings.TrimSpace(pair) == "" {
			continue
		}
		if !ok || err != nil {
			return nil, errors.New("OTEL_EXPORTER_OTLP_HEADERS: must be name=value,name=value with percent-encoded values")
		}
		c.header.Set(strings.TrimSpace(name), plain)
	}
	if c.gzip = otlpVariable("COMPRESSION") == "gzip"; c.gzip {
		c.header.Set("Content-Encoding", "gzip")
	}
	timeout := otlpTimeout
	if ms := otlpVariable("TIMEOUT"); ms != "" {
		n, err := strconv.Atoi(ms)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_TIMEOUT: %q: must be a number of milliseconds", ms)
		}
		timeout = time.Duration(n) * time.Millisecond
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if transport.TLSClientConfig, err = otlpTLS(); err != nil {
		return nil, err
	}
	c.client = &http.Client{Transport: transport, Timeout: timeout}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// otlpTLS returns the certificates that the variables name, or nil.
func otlpTLS() (*tls.Config, error) {
	ca, cert, key := otlpVariable("CERTIFICATE"), otlpVariable("CLIENT_CERTIFICATE"), otlpVariable("CLIENT_KEY")
	if ca == "" && cert == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %s has no certificate in PEM", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Start implements otlptrace.Client.
func (c *collector) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client. It ends requests in progress.
func (c *collector) Stop(context.Context) error {
	c.stop()
	return nil
}

// UploadTraces implements otlptrace.Client. It retries while the collector is overloaded or
// cannot be reached.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// It has the field of an ExportTraceServiceRequest, whose package imports gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	if c.gzip {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(body) // a bytes.Buffer accepts everything
		_ = w.Close()
		body = b.Bytes()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	for attempt, wait := 1, c.backoff; ; attempt, wait = attempt+1, 2*wait {
		after, err := c.send(ctx, body)
		if err == nil || after < 0 || attempt == otlpAttempts {
			return err
		}
		select {
		case <-time.After(max(wait, after)):
		case <-ctx.Done():
			return err
		}
	}
}

// send sends one request. After an error, it returns the time that the collector asks to wait,
// or -1 if the request must not be sent again.
func (c *collector) send(ctx context.Context, body []byte) (after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return -1, err
	}
	req.Header = c.header.Clone()
	res, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
	if res.StatusCode < 300 {
		return 0, nil
	}
	err = fmt.Errorf("%s: %s: %q", c.host, res.Status, bytes.TrimSpace(said))
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return time.Duration(max(seconds, 0)) * time.Second, err
	}
	return -1, err
}
