package stetmcp

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/mcpcall"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/store"
)

// DefaultKeyName is the member of a call's _meta that has the key.
const DefaultKeyName = mcpcall.KeyName

// DefaultWait is how long a call waits for one in flight.
const DefaultWait = 30 * time.Second

// Rule says how the calls of a tool are protected. The zero Rule: a call without a key is
// refused.
type Rule struct {
	// Unprotected lets the calls through, with or without a key. The results of those with
	// a key say so in their _meta. A tool whose annotations have ReadOnlyHint, and that has
	// no Rule, is let through without one.
	Unprotected bool
	// Optional lets calls without a key through; their results say so in their _meta.
	Optional bool
	// Window, if set, protects calls without a key: calls of the tool with the same arguments
	// in the same session are one operation until Window after its end, on the store's clock.
	// If sessions have no ID (over standard input and output, and on stateless servers), all
	// calls of a scope are one session. A call with a key is distinguished by its key, and
	// remembered for the same time.
	//
	// Two calls in a window are one: the second gets the result of the first, and has no
	// effect. Use it for "send this report to Ann", not for "add one to the basket".
	//
	// The operations must be deleted exactly after the window, so the store.Retention of the
	// Class must have it as Result and Tombstone.
	Window time.Duration
	// Class selects a policy of stet.Options.Classes. Default "", which is stet.Options.Policy.
	Class string
}

// Options configure a Protector. Scope must be set.
type Options struct {
	// Scope says whose keys they are: TokenUser, SingleTenant, or a function of yours that
	// looks at the session, the token and the HTTP header in the request. No two callers that
	// do not trust each other may share a scope. "", errors and panics refuse the call.
	Scope func(context.Context, *mcp.CallToolRequest) (string, error)
	// Tools has the rules of tools, by name.
	Tools map[string]Rule
	// Default is the rule of all other tools, except read-only ones.
	Default Rule
	// KeyName is the member of _meta that has the key. Default DefaultKeyName. A host may
	// have one of its own that names a call: "claudecode/toolUseId", for one.
	KeyName string
	// Wait is how long a call waits for the same call in flight, and for its result, before it
	// is refused with words. At most store.MaxWait; stet.NoWait does not wait. Default DefaultWait.
	Wait time.Duration
	// Fingerprint, if set, is the digest of what a call asks for: for tools that share their
	// operations with another adapter, such as an HTTP handler. Default: the tool, and its arguments
	// in canonical form. The zero Fingerprint, and a panic, refuse the call.
	Fingerprint func(*mcp.CallToolRequest) store.Fingerprint
	// ErrorLog receives failures that callers do not see. Default slog.Default().
	ErrorLog *slog.Logger
}

// SingleTenant is a Scope for servers whose callers are all one: a server over standard
// input and output with a store of its own.
func SingleTenant(context.Context, *mcp.CallToolRequest) (string, error) { return "-", nil }

// TokenUser is a Scope for servers behind auth.RequireBearerToken: the UserID of the
// token. A token without one has no scope, and its calls are refused.
func TokenUser(_ context.Context, req *mcp.CallToolRequest) (string, error) {
	if req.Extra == nil || req.Extra.TokenInfo == nil {
		return "", errors.New("the call has no token: put auth.RequireBearerToken before the server's handler")
	}
	return req.Extra.TokenInfo.UserID, nil
}

func (o Options) withDefaults(engine *stet.Engine) (Options, error) {
	if o.Scope == nil {
		return o, misuse.Errorf("stetmcp: Options.Scope must say whose keys they are; TokenUser and SingleTenant are such functions")
	}
	o.KeyName = cmp.Or(o.KeyName, DefaultKeyName)
	if err := mcpcall.CheckName(o.KeyName); err != nil {
		return o, misuse.Errorf("stetmcp: Options.KeyName %q is no name for _meta: %w", o.KeyName, err)
	}
	o.Wait = cmp.Or(o.Wait, DefaultWait)
	if o.Wait < 0 || o.Wait > store.MaxWait {
		return o, misuse.Errorf("stetmcp: Options.Wait is %v; it must be 0 to %v", o.Wait, store.MaxWait)
	}
	if err := o.Default.check(engine); err != nil {
		return o, misuse.Errorf("stetmcp: Options.Default: %w", err)
	}
	o.Tools = maps.Clone(o.Tools)
	for _, name := range slices.Sorted(maps.Keys(o.Tools)) {
		if err := o.Tools[name].check(engine); err != nil {
			return o, misuse.Errorf("stetmcp: Options.Tools[%q]: %w", name, err)
		}
	}
	return o, nil
}

func (r Rule) check(engine *stet.Engine) error {
	p, ok := engine.Policy(r.Class)
	switch {
	case !ok:
		return misuse.Errorf("its Class %q is not among stet.Options.Classes", r.Class)
	case r.Unprotected && (r.Optional || r.Window != 0 || r.Class != ""):
		return misuse.Errorf("Unprotected leaves no place for Optional, Window or Class")
	case r.Optional && r.Window != 0:
		return misuse.Errorf("Optional lets calls without a key through, and Window protects them: use one of them")
	case r.Window < 0:
		return misuse.Errorf("Window is negative: %v", r.Window)
	case p.Outside:
		return misuse.Errorf("its policy has Outside, and a tool's result is settled here")
	case r.Window > 0 && (p.Retention.Result != r.Window || p.Retention.Tombstone != r.Window):
		return misuse.Errorf("Window is %v, and operations of its Class %q are replayed for %v and remembered for %v: give it a class of stet.Options.Classes with Retention: store.Retention{Result: %[1]v, Tombstone: %[1]v}",
			r.Window, r.Class, p.Retention.Result, p.Retention.Tombstone)
	}
	return nil
}
