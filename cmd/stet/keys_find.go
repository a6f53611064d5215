package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/store"
)

// accountVariable is the environment variable with the account. A flag would be visible in the
// list of processes, and of some scopes the account is a credential.
const accountVariable = "STET_ACCOUNT"

// known has the parts that a person knows of an operation.
type known struct {
	key, account, ref, scope string
}

func (k *keys) newFind() *cobra.Command {
	var f known
	cmd := &cobra.Command{
		Use:   "find [KEY]",
		Short: "Find operations by a key, an account and a reference",
		Long: `Find operations by a key, an account, a reference, or some of them. --account, or
$` + accountVariable + `, is the value that identifies the caller, as the scope of --config
says: the claim, the header's value, the host, the user of basic authentication or
"user:password", the value of the Authorization header; also a scope's label.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				f.key = args[0]
			}
			if f.account == "" {
				f.account = os.Getenv(accountVariable)
			}
			if f == (known{}) {
				return usage{errors.New("which operations? Give a key, --account, --ref or several of them")}
			}
			o := stet.Options{}
			if k.admin == "" {
				var err error
				if o.Encryption, _, err = k.encryption(); err != nil {
					return usage{err}
				}
				o.Encryption.AcceptPlain = true // to find
			}
			return k.at(cmd, o, nil, func(d admin.API) error { return k.printFound(cmd, d, f) })
		},
	}
	cmd.Flags().StringVar(&f.account, "account", "", "account of the caller (default $"+accountVariable+")")
	cmd.Flags().StringVar(&f.ref, "ref", "", "reference of the service, such as the ID of an order")
	cmd.Flags().StringVar(&f.scope, "scope", "", "scope as in the service, if it is known")
	return cmd
}

// queries returns the queries that may find the operations.
func (k *keys) queries(f known) (qs []admin.Query, err error) {
	c, err := k.config()
	if err != nil {
		return nil, err
	}
	scopes := []string{f.scope}
	if f.scope == "" {
		scopes = c.ScopesOf(f.account)
	}
	names := admin.Names{Ref: f.ref}
	for _, namespace := range c.Namespaces() {
		for _, scope := range scopes {
			switch {
			case f.key != "":
				qs = append(qs, admin.Query{ID: store.Digest(namespace, scope, f.key), Names: names})
			case f.scope != "" || f.account != "":
				qs = append(qs, admin.Query{Scope: store.DigestScope(namespace, scope), Names: names})
			}
		}
	}
	switch named := (admin.Names{Ref: f.ref, ScopeLabel: f.account}); {
	case f.scope != "":
	case f.key == "": // the label of the account, or only a reference
		qs = append(qs, admin.Query{Names: named})
	case k.admin == "": // the key is stored, perhaps
		qs = append(qs, admin.Query{Names: named, Key: f.key})
	}
	return qs, nil
}

// printFound prints the operations.
func (k *keys) printFound(cmd *cobra.Command, d admin.API, f known) error {
	qs, err := k.queries(f)
	if err != nil {
		return err
	}
	records := []admin.Record{}
	for _, q := range qs {
		found, more, err := readList(cmd.Context(), d, q, maxList)
		if err != nil {
			return err
		}
		if more {
			cmd.PrintErrf("there may be more than %d; give more of what you know\n", len(found))
		}
		for _, r := range found {
			if !slices.ContainsFunc(records, func(has admin.Record) bool { return has.ID == r.ID }) {
				records = append(records, r)
			}
		}
		if len(records) > 0 && f.key != "" {
			break // the other queries are for an unknown scope
		}
	}
	switch {
	case len(records) == 0:
		return fmt.Errorf("no such operation was found by %d queries; is --config, or --namespace, that of the service?", len(qs))
	case len(records) == 1:
		return k.show(cmd.OutOrStdout(), records[0])
	}
	return k.print(cmd, records, false)
}
