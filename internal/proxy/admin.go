package proxy

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
)

// Admin is the listener for operators.
type Admin struct {
	Listen    string       `yaml:"listen"`
	TLS       *TLS         `yaml:"tls"`
	Tokens    []AdminToken `yaml:"tokens" flag:"-"`
	Token     string       `yaml:"token" flag:"-"`
	TokenFile string       `yaml:"token_file"`
	Audit     string       `yaml:"audit"`
}

// AdminToken is a bearer token of one operator or program.
type AdminToken struct {
	Name      string `yaml:"name"`
	May       string `yaml:"may" oneof:"look change"`
	Token     string `yaml:"token"`
	TokenFile string `yaml:"token_file"`
}

// check returns the tokens, of which there may be none.
func (a Admin) check() (tokens []dashboard.Token, err error) {
	secret, field, err := readToken(a.Token, a.TokenFile)
	if err != nil {
		return nil, under(err, field)
	}
	if secret != "" {
		tokens = append(tokens, dashboard.Token{Name: dashboard.DefaultTokenName, Secret: secret, Change: true})
	}
	for i, t := range a.Tokens {
		secret, field, err := readToken(t.Token, t.TokenFile)
		if err == nil && secret == "" {
			err = fmt.Errorf("required: the token of %q, or token_file", t.Name)
		}
		if err != nil {
			return nil, under(err, "tokens", i, field)
		}
		tokens = append(tokens, dashboard.Token{Name: t.Name, Secret: secret, Change: t.May == "change"})
		if err := dashboard.CheckTokens(tokens); err != nil {
			return nil, under(err, "tokens", i)
		}
	}
	if a.TLS != nil {
		if _, err := a.TLS.Config(); err != nil {
			return nil, under(err, "tls")
		}
	}
	listen := cmp.Or(a.Listen, DefaultAdmin)
	if listen == "off" {
		return tokens, nil
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, under(fmt.Errorf(`%q is no address: host:port, or "off"`, listen), "listen")
	}
	if len(tokens) == 0 && !admin.LoopbackName(host) {
		return nil, under(fmt.Errorf("required, because %s can be reached from other hosts; write ${STET_ADMIN_TOKEN}, say, and set that", listen), "token")
	}
	return tokens, nil
}

// readToken returns a token that is written in one of two fields, and in which. It is
// in no error.
func readToken(token, file string) (secret, field string, err error) {
	field = "token"
	if file != "" {
		field = "token_file"
		if token != "" {
			return "", field, fmt.Errorf("there is a token, too; leave one of them out")
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return "", field, err
		}
		if token = strings.TrimRight(string(text), "\r\n"); token == "" {
			return "", field, fmt.Errorf("%s is empty", file)
		}
	}
	if token != "" {
		err = dashboard.CheckToken(token)
	}
	return token, field, err
}

// Exposed reports whether tokens and answers can be read on the network: the listener
// is not on the loopback interface and has no TLS.
func (a Admin) Exposed() bool {
	listen := cmp.Or(a.Listen, DefaultAdmin)
	host, _, err := net.SplitHostPort(listen)
	return listen != "off" && err == nil && a.TLS == nil && !admin.LoopbackName(host)
}
