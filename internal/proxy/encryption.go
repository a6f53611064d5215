package proxy

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"github.com/stet-go/stet"
)

// Encryption encrypts stored responses: see stet.Encryption.
type Encryption struct {
	Keys        []EncryptionKey `yaml:"keys"`
	AcceptPlain bool            `yaml:"accept_plain"`
}

// EncryptionKey is a secret in a file.
type EncryptionKey struct {
	Name string `yaml:"name"`
	File string `yaml:"file"`
}

// Encrypts reads the files of Encryption's keys. Without Encryption it returns the zero value.
func (c *Config) Encrypts() (stet.Encryption, error) {
	o, err := c.Encryption.options()
	if err != nil {
		err = c.hide(c.place(err, "encryption"))
	}
	return o, err
}

// options reads the files.
func (e *Encryption) options() (o stet.Encryption, err error) {
	if e == nil {
		return o, nil
	}
	if len(e.Keys) == 0 {
		return o, at("keys", "required: at least one, with name and file; without encryption, leave all of it out")
	}
	o.AcceptPlain = e.AcceptPlain
	names := map[string]bool{}
	for i, k := range e.Keys {
		bad := func(field, format string, args ...any) (stet.Encryption, error) {
			return stet.Encryption{}, under(at(field, format, args...), "keys", i)
		}
		switch {
		case k.Name == "" || len(k.Name) > 255:
			return bad("name", "%d bytes; give it 1 to 255", len(k.Name))
		case names[k.Name]:
			return bad("name", "there are two by the name of %q", k.Name)
		case k.File == "":
			return bad("file", "required")
		}
		names[k.Name] = true
		secret, err := readSecret(k.File)
		if err != nil {
			return bad("file", "%w", err)
		}
		for _, other := range o.Keys {
			if bytes.Equal(other.Secret, secret) {
				return bad("file", "the key %q has the same secret; make a new one", other.Name)
			}
		}
		o.Keys = append(o.Keys, stet.EncryptionKey{Name: k.Name, Secret: secret})
	}
	return o, nil
}

// secretSize is the length of a secret, in bytes.
const secretSize = 32

// readSecret reads 32 bytes in base64. Its error quotes no part of the file.
func readSecret(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	secret, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(secret) != secretSize {
		return nil, fmt.Errorf("%s does not have %d bytes in base64; make it with 'openssl rand -base64 %[2]d'", name, secretSize)
	}
	if bytes.Equal(secret, make([]byte, len(secret))) {
		return nil, errors.New(name + " has nothing but zeros; make it with 'openssl rand -base64 32'")
	}
	return secret, nil
}
