package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/stet-go/stet/internal/proxy"
)

func newCheck() *cobra.Command {
	var out format
	var reference, schema bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Validate a configuration of the proxy",
		Long: `check reads a configuration of stet proxy, with the environment variables that
it names, and prints each error with its line. It connects to nothing.
--reference prints a configuration with every field, explained: a good one to
start with. --schema prints the JSON schema, with which editors complete it.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if reference || schema {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if reference {
				_, err := fmt.Fprint(cmd.OutOrStdout(), proxy.Reference)
				return err
			}
			if schema {
				_, err := fmt.Fprint(cmd.OutOrStdout(), proxy.Schema)
				return err
			}
			c, err := readConfig(args[0])
			if err == nil {
				defaultStore(c)
				err = c.Check()
			}
			if out.json() {
				return printCheck(cmd, args[0], err)
			}
			if err != nil {
				return fmt.Errorf("%s is not acceptable:\n%w", args[0], err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is acceptable: %s\n", args[0], c)
			return err
		},
	}
	cmd.Flags().BoolVar(&reference, "reference", false, "print a configuration with every field, explained")
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON schema of configurations")
	cmd.MarkFlagsMutuallyExclusive("reference", "schema")
	out.add(cmd, cmd.Flags())
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveDefault) // FILE
	return cmd
}

// printCheck prints one object, and returns an error if the file is not acceptable.
func printCheck(cmd *cobra.Command, name string, wrong error) error {
	result := struct {
		File       string   `json:"file"`
		Acceptable bool     `json:"acceptable"`
		Errors     []string `json:"errors"`
	}{name, wrong == nil, []string{}}
	if wrong != nil {
		result.Errors = strings.Split(wrong.Error(), "\n")
	}
	if err := json.NewEncoder(cmd.OutOrStdout()).Encode(result); err != nil {
		return err
	}
	if wrong != nil {
		return fmt.Errorf("%s is not acceptable", name)
	}
	return nil
}

// readConfig reads a configuration's file.
func readConfig(name string) (*proxy.Config, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return proxy.Parse(name, f, os.LookupEnv)
}
