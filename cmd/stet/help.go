package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpTemplate is what help says of the use of a command: cobra's own, without
// what stet has no use for, so that all of it fits a screen of 24 lines, and flags
// one of 80 columns. The root has no flags but --help, which its last line names.
const helpTemplate = `Usage: {{if not .HasAvailableSubCommands}}{{.UseLine}}{{else}}{{.CommandPath}} [command]

Commands:{{range .Commands}}{{if and .IsAvailableCommand (ne .Name "help")}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if and .HasParent .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 80 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Global Flags:
{{.InheritedFlags.FlagUsagesWrapped 80 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

Use "{{.CommandPath}} [command] --help" for more about a command.{{end}}
`

// completing has the shell offer what a command below root accepts, and no names
// of files where none are wanted.
func completing(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		completing(cmd)
		if cmd.ValidArgsFunction == nil && cmd.Name() != "check" { // that takes a file
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { completingFlag(cmd, f) })
		cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) { completingFlag(cmd, f) })
	}
}

func completingFlag(cmd *cobra.Command, f *pflag.Flag) {
	if _, there := cmd.GetFlagCompletionFunc(f.Name); there {
		return
	}
	complete := cobra.NoFileCompletions
	switch f.Name {
	case "output":
		complete = cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)
	case "store", "audit": // a file, or a value that cannot be proposed
		return
	}
	_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails only where there is no such flag, or twice
}
