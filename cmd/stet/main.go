// Command stet shows and runs stet, an idempotency layer.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := untilSignal()
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// usage is an error in how the command was called.
type usage struct{ error }

// run runs the command line args and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	started := false
	root := newRoot()
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var wrong usage
	if !started || errors.As(err, &wrong) { // what cobra itself refuses does not get to start
		fmt.Fprintf(stderr, "%s: %v\nSee '%s --help'.\n", cmd.CommandPath(), err, cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
	return exitFailure
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "stet",
		Short: "Idempotency for HTTP, gRPC and messages: a retry gets the first outcome",
		Long: `stet makes retries safe: it stores the first outcome of an operation, and every
retry gets that same outcome. To see it work, for some ten seconds:  stet demo

Exit status: 0 done, 1 failed or something is wrong, 2 wrong usage.`,
		Version:       builtFrom(debug.ReadBuildInfo()).String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newDemo(), newDemoService(), newProxy(), newWorker(), newConsume(), newCheck(), newKeys(), newDoctor(), newSupportBundle(), newSweep(), newReconcile(), newMigrate(), newVerify(), newVersion(), newStoreTopic())
	root.SetUsageFunc(usageFunc("\nFlags:\n", "\nGlobal Flags:\n", 80))
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	return root
}
