package main

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// usageFunc returns a function that prints how a command is used, below these headings for its
// own flags and for those of its parents, wrapped at this column unless it is 0. It prints what cobra prints, without the parts that
// stet has no use for, because the help must fit a screen of 24 lines. It is no template of
// cobra, because text/template makes the linker retain every exported method.
func usageFunc(own, inherited string, width int) func(*cobra.Command) error {
	return func(cmd *cobra.Command) error {
		local, above := cmd.LocalFlags(), cmd.InheritedFlags() // first: they merge flags, which UseLine reads
		var b strings.Builder
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintf(&b, "Usage: %s [command]\n\nCommands:", cmd.CommandPath())
			for _, c := range cmd.Commands() {
				if c.IsAvailableCommand() && c.Name() != "help" {
					fmt.Fprintf(&b, "\n  %-*s %s", c.NamePadding(), c.Name(), c.Short)
				}
			}
		} else {
			fmt.Fprintf(&b, "Usage: %s", cmd.UseLine())
		}
		if cmd.HasParent() && local.HasAvailableFlags() { // of the root, the last line names the only one
			fmt.Fprintf(&b, "\n%s%s", own, strings.TrimRightFunc(local.FlagUsagesWrapped(width), unicode.IsSpace))
		}
		if above.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s%s", inherited, strings.TrimRightFunc(above.FlagUsagesWrapped(width), unicode.IsSpace))
		}
		if cmd.HasAvailableSubCommands() {
			fmt.Fprintf(&b, "\n\nUse \"%s [command] --help\" for more about a command.", cmd.CommandPath())
		}
		_, err := fmt.Fprintln(cmd.OutOrStderr(), b.String())
		return err
	}
}
