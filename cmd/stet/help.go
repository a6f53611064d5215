package main

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
