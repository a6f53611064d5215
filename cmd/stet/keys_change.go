package main

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/seal"
	"github.com/stet-go/stet/stethttp"
)

// change is a change by hand of one operation.
type change struct {
	*keys
	reason, audit, actor string
	dryRun, yes          bool

	keep       stet.Retention
	plain      bool
	encryption stet.Encryption // with the key of keyVariable, if it is needed
}

// keyVariable is the variable of the environment with the name and the secret of
// the key that the service encrypts with.
const keyVariable = "STET_ENCRYPTION_KEY"

const defaultRetention = 24 * time.Hour // stet.Retention's

// sealed finds out how the service wants the response that is about to be stored.
// One that it did not encrypt, or with another key, is damaged to it, and stands.
func (c *change) sealed() error {
	value := os.Getenv(keyVariable)
	switch {
	case c.plain:
		return nil
	case value == "":
		return fmt.Errorf("does the service encrypt what it stores? If it does, put its key in %s as NAME=SECRET, in base64; if not, give --plain", keyVariable)
	}
	name, encoded, _ := strings.Cut(value, "=")
	secret, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || name == "" || len(secret) != seal.SecretSize {
		return fmt.Errorf("%s has to be NAME=SECRET, the secret being %d bytes in base64", keyVariable, seal.SecretSize)
	}
	c.encryption.Keys = []stet.EncryptionKey{{Name: name, Secret: secret}}
	return nil
}

// flags adds what all changes have in common.
func (c *change) flags(cmd *cobra.Command) {
	c.name(cmd)
	f := cmd.Flags()
	f.StringVar(&c.reason, "reason", "", "why; required, and written down")
	f.StringVar(&c.audit, "audit", "", "file that the change is written down in (default: the standard error)")
	f.StringVar(&c.actor, "actor", "", "who decides (default: the user of this process, on this host)")
	f.BoolVar(&c.dryRun, "dry-run", false, "say what would be done, and change nothing")
	f.BoolVar(&c.yes, "yes", false, "do not ask")
}

func (k *keys) newResolve() *cobra.Command {
	c := &change{keys: k}
	var as, body string
	var status int
	var header []string
	cmd := &cobra.Command{
		Use:   "resolve [KEY] --as VERDICT --reason WHY",
		Short: "Say what became of a dead run: completed, failed or not-executed",
		Long:  `Look in the books first. Retries get the response of --status, or learn of it (410).`,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			verdict, to, err := parseVerdict(as, status, header, body)
			if err != nil {
				return usage{err}
			}
			if status != 0 {
				if err := c.sealed(); err != nil {
					return usage{err}
				}
			}
			return c.resolve(cmd, args, "resolve", verdict, to)
		},
	}
	c.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&as, "as", "", "completed, failed or not-executed")
	f.IntVar(&status, "status", 0, "status of the response that retries get")
	f.StringVar(&body, "body-file", "", "file with its content")
	f.StringArrayVar(&header, "header", nil, `field of its header, like "Content-Type: application/json"`)
	f.BoolVar(&c.plain, "plain", false, "the service does not encrypt (default: it does, with $"+keyVariable+", NAME=base64)")
	f.DurationVar(&c.keep.Result, "retention", defaultRetention, "how long the response is kept, as in the service's policy")
	f.DurationVar(&c.keep.Tombstone, "tombstone", 30*24*time.Hour, "how long the key is known after it was executed")
	_ = cmd.RegisterFlagCompletionFunc("as", cobra.FixedCompletions([]string{"completed", "failed", "not-executed"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// parseVerdict returns the verdict that the flags of resolve give, and the state
// that it leads to.
func parseVerdict(as string, status int, fields []string, file string) (v stet.Verdict, to stet.State, err error) {
	switch as {
	case "not-executed":
		if status != 0 || len(fields) > 0 || file != "" {
			return v, to, errors.New("what was not executed has no response; leave --status, --header and --body-file out")
		}
		return stet.ItDidNotHappen(), stet.Retryable, nil
	case "completed":
		to = stet.Completed
	case "failed":
		to = stet.Failed
	default:
		return v, to, fmt.Errorf("--as is %q; give it completed, failed or not-executed", as)
	}
	if status == 0 {
		if len(fields) > 0 || file != "" {
			return v, to, errors.New("a response needs a --status")
		}
		return stet.ItHappened(stet.Outcome{State: to, Gone: true}), to, nil
	}
	header := http.Header{}
	for _, f := range fields {
		name, value, ok := strings.Cut(f, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return v, to, fmt.Errorf(`--header %q is no field; write it like "Content-Type: text/plain"`, f)
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	var content []byte
	if file != "" {
		if content, err = os.ReadFile(file); err != nil {
			return v, to, fmt.Errorf("--body-file: %w", err)
		}
	}
	out, err := stethttp.Outcome(status, header, content)
	out.State = to
	return stet.ItHappened(out), to, err
}

func (k *keys) newRelease() *cobra.Command {
	c := &change{keys: k}
	cmd := &cobra.Command{
		Use:   "release [KEY] --reason WHY",
		Short: "Let a dead run's operation run again; resolve --as not-executed",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.keep.Tombstone = c.keep.Result // what was not executed leaves none
			return c.resolve(cmd, args, "release", stet.ItDidNotHappen(), stet.Retryable)
		},
	}
	c.flags(cmd)
	cmd.Flags().DurationVar(&c.keep.Result, "retention", defaultRetention, "how long a retry may take to come, as in the service's policy")
	return cmd
}

// resolve makes a change through the engine.
func (c *change) resolve(cmd *cobra.Command, args []string, action string, verdict stet.Verdict, to stet.State) error {
	if c.keep.Result <= 0 || c.keep.Tombstone < c.keep.Result {
		return usage{fmt.Errorf("--retention is %v and --tombstone %v; give both more than nothing, and the tombstone no less than the result", c.keep.Result, c.keep.Tombstone)}
	}
	return c.make(cmd, args, action, to.String(), func(s *storage, rec stet.Record) error {
		engine, err := stet.New(s.Store, stet.Options{Namespace: c.namespace, SweepEvery: -1,
			Policy: stet.Policy{Retention: c.keep}, Encryption: c.encryption})
		if err != nil {
			return err
		}
		defer engine.Close()
		return engine.Resolve(cmd.Context(), rec, "", verdict)
	})
}

func (k *keys) newExpire() *cobra.Command {
	c := &change{keys: k}
	cmd := &cobra.Command{
		Use:   "expire [KEY] --reason WHY",
		Short: "Remove the stored result; the operation still never runs again",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.make(cmd, args, "expire", "tombstone", func(s *storage, rec stet.Record) error {
				browser, ok := s.Store.(stet.Browser)
				if !ok {
					return fmt.Errorf("the store %s cannot expire a result by hand", s.kind)
				}
				return browser.Expire(cmd.Context(), rec.Claim())
			})
		},
	}
	c.flags(cmd)
	return cmd
}

// make shows the record, asks, and has do change it as it was shown. Before and
// after, it is written down; what cannot be written down is not done.
func (c *change) make(cmd *cobra.Command, args []string, action, to string, do func(*storage, stet.Record) error) error {
	if strings.TrimSpace(c.reason) == "" {
		return usage{errors.New("--reason is required: whoever reads the audit wants to know why")}
	}
	return c.with(cmd, func(s *storage) (err error) {
		rec, err := c.record(cmd, s.Store, args)
		if err != nil {
			return err
		}
		if err := c.possible(action, rec); err != nil {
			return err
		}
		book, err := c.open(cmd)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, book.Close()) }()
		e := entry{Who: cmp.Or(c.actor, whoami()), Why: c.reason, Action: action, Store: s.place, ID: rec.ID.String(), Scope: rec.Scope.String(),
			From: stood{rec.State.String(), rec.Fence, rec.Attempt}, To: to}
		if c.dryRun {
			return c.done(cmd, book, e, "dry run")
		}
		if !c.yes {
			if err := c.confirm(cmd, rec, action, to); err != nil {
				return err
			}
		}
		if err := e.write(book, "begun"); err != nil {
			return fmt.Errorf("it cannot be written down, so nothing was changed: %w", err)
		}
		if err := do(s, rec); err != nil {
			e.Error = err.Error()
			return errors.Join(err, e.write(book, "failed"))
		}
		return c.done(cmd, book, e, "done")
	})
}

// possible says early, and in an operator's words, what the store would refuse.
func (c *change) possible(action string, rec stet.Record) error {
	switch {
	case action == "expire" && !rec.State.Settled():
		return fmt.Errorf("it is %v: only what is completed or failed has a result", rec.State)
	case action == "expire":
		return nil
	case rec.State == stet.Running && rec.LeaseLeft > 0:
		return fmt.Errorf("it is running, under a lease for %v more: wait for it, or end its process first", rec.LeaseLeft.Round(time.Millisecond))
	case rec.State != stet.Running && rec.State != stet.Unknown:
		return fmt.Errorf("it is %v already; only what is unknown can be resolved", rec.State)
	}
	return nil
}

// done writes the change down and reports it.
func (c *change) done(cmd *cobra.Command, book io.Writer, e entry, result string) error {
	if err := e.write(book, result); err != nil {
		return fmt.Errorf("%s, but it could not be written down: %w", result, err)
	}
	if c.format.json() {
		e.Result = result
		return json.NewEncoder(cmd.OutOrStdout()).Encode(e)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s is %s, was %s\n", result, e.ID[:idDigits], e.To, e.From.State)
	return err
}

// idDigits are enough of a digest for a person to compare.
const idDigits = 12

// confirm has somebody type what is to be changed.
func (c *change) confirm(cmd *cobra.Command, rec stet.Record, action, to string) error {
	v := newView(rec)
	for _, row := range v.rows() {
		cmd.PrintErrf("%-12s %s\n", row[0], row[1])
	}
	want := v.ID[:idDigits]
	cmd.PrintErrf("\n%s makes it %s; every retry will see that.\nType %s to go on: ", action, to, want)
	answer := make(chan string, 1)
	go func() { // ends with the process at the latest: an interrupt does not end a read
		line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		answer <- line
	}()
	select {
	case line := <-answer:
		if strings.TrimSpace(line) == want {
			return nil
		}
		return fmt.Errorf("not confirmed; nothing was changed. Type %s when asked, or give --yes", want)
	case <-cmd.Context().Done():
		return errors.New("not confirmed; nothing was changed")
	}
}

// stood is where an operation was.
type stood struct {
	State   string `json:"state"`
	Fence   int64  `json:"fence"`
	Attempt int    `json:"attempt"`
}

// entry is one line of the audit. It has no key, scope or body.
type entry struct {
	At     time.Time `json:"at"`
	Who    string    `json:"who"`
	Why    string    `json:"why"`
	Action string    `json:"action"`
	Result string    `json:"result"` // begun, done, failed or dry run
	Store  string    `json:"store"`
	ID     string    `json:"id"`
	Scope  string    `json:"scope_digest"`
	From   stood     `json:"from"`
	To     string    `json:"to"`
	Error  string    `json:"error,omitempty"`
}

func (e entry) write(w io.Writer, result string) error {
	e.At, e.Result = time.Now().UTC(), result
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n')) // at once: lines of several operators do not mix
	return err
}

// open opens what the change is written down in.
func (c *change) open(cmd *cobra.Command) (io.WriteCloser, error) {
	if c.audit == "" {
		return unclosed{cmd.ErrOrStderr()}, nil
	}
	f, err := os.OpenFile(c.audit, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--audit: %w", err)
	}
	return f, nil
}

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// whoami is the user of this process, and who has become it with sudo.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if by := os.Getenv("SUDO_USER"); by != "" {
		name = by + " as " + name
	}
	if host, err := os.Hostname(); err == nil {
		name += " on " + host
	}
	return name
}
