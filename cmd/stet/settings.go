package main

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stet-go/stet/internal/proxy"
)

// settings are flags for the fields of a configuration. A flag overrides the file. Each
// field has one name everywhere: proxy.FlagName.
type settings struct {
	file  string            // --config
	given map[string]string // values of flags by the path of their field
}

// addStore adds the flags of the store and its options, the same to every command. Help shows
// only the first of them.
func (s *settings) addStore(flags *pflag.FlagSet) {
	flags.StringVar(&s.file, "config", "", "")
	flags.Lookup("config").Hidden = true // 'stet help store' shows it
	if flags.Lookup("store") == nil {
		s.shown(flags, "store.url", storeHelp+" (default $"+storeVariable+" or "+proxy.DefaultStore+"); more: 'stet help store'")
	}
	s.hidden(flags, "store.")
}

// shown adds the flag of a field.
func (s *settings) shown(flags *pflag.FlagSet, path, help string) {
	for _, field := range proxy.Settings() {
		if field.Path == path {
			s.setting(flags, field, help)
		}
	}
}

// hidden adds flags for the other fields whose path begins with prefix. Help does not show them.
func (s *settings) hidden(flags *pflag.FlagSet, prefix string) {
	for _, field := range proxy.Settings() {
		name := strings.TrimPrefix(field.Flag, "--")
		if strings.HasPrefix(field.Path, prefix) && flags.Lookup(name) == nil {
			s.setting(flags, field, "")
			flags.Lookup(name).Hidden = true
		}
	}
}

func (s *settings) setting(flags *pflag.FlagSet, field proxy.Setting, help string) {
	f := flags.VarPF(&value{s: s, path: field.Path}, strings.TrimPrefix(field.Flag, "--"), "", help)
	if field.Path == "store.url" {
		_ = flags.SetAnnotation(f.Name, cobra.BashCompFilenameExt, []string{}) // a file, with any extension
	}
	if field.Bool {
		f.NoOptDefVal = "true"
	}
}

// value is the flag of one field.
type value struct {
	s    *settings
	path string
	text string
}

// String implements pflag.Value.
func (v *value) String() string { return v.text }

// Type implements pflag.Value.
func (v *value) Type() string { return "value" }

// Set implements pflag.Value.
func (v *value) Set(text string) error {
	if err := new(proxy.Config).Set(v.path, text); err != nil {
		return err
	}
	v.text = text
	v.s.set(v.path, text)
	return nil
}

func (s *settings) set(path, value string) {
	if s.given == nil {
		s.given = map[string]string{}
	}
	s.given[path] = value
}

// setDefault sets a field if its flag was not given.
func (s *settings) setDefault(path, value string) {
	if s.given[path] == "" {
		s.set(path, value)
	}
}

// read reads the file and applies the flags.
func (s *settings) read() (*proxy.Config, error) {
	c := &proxy.Config{}
	if s.file != "" {
		var err error
		if c, err = readConfig(s.file); err != nil {
			return nil, err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(s.given)) {
		if err := c.Set(path, s.given[path]); err != nil {
			return nil, usage{err}
		}
	}
	return c, nil
}

// config reads the configuration and fills in the default store.
func (s *settings) config() (*proxy.Config, error) {
	c, err := s.read()
	if err == nil {
		defaultStore(c)
	}
	return c, err
}

// defaultStore fills in the store's URL if the configuration has none.
func defaultStore(c *proxy.Config) {
	c.Store.URL = cmp.Or(c.Store.URL, os.Getenv(storeVariable), proxy.DefaultStore)
}

// storeConfig returns the configuration for commands that need only its store.
func (s *settings) storeConfig() (*proxy.Config, error) {
	c, err := s.config()
	if err == nil {
		err = c.CheckStore()
	}
	if err != nil && s.file == "" {
		return nil, usage{err}
	}
	return c, err
}
