package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Set by -ldflags "-X main.release=v1.2.3 -X main.commit=… -X main.date=…" in builds from an
// archive of the sources. Builds from a Git checkout or by go install have them from Go itself.
var release, commit, date string

// build says of which sources this program was built.
type build struct {
	Version  string `json:"version"`            // of the module; "(devel)" if unknown
	Commit   string `json:"commit,omitempty"`   // in Git
	Date     string `json:"date,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified,omitempty"` // the sources had changes that are not in the commit
	Go       string `json:"go"`                 // version of the toolchain
	Platform string `json:"platform"`           // such as linux/amd64
}

// builtFrom returns the values that the toolchain has recorded, and for missing ones those of the variables.
func builtFrom(info *debug.BuildInfo, ok bool) build {
	b := build{Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if ok {
		if info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.time":
				b.Date = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	b.Version, b.Commit, b.Date = cmp.Or(b.Version, release, "(devel)"), cmp.Or(b.Commit, commit), cmp.Or(b.Date, date)
	return b
}

// String is one line, without the name of the program.
func (b build) String() string {
	parts := []string{b.Version}
	if b.Commit != "" {
		parts = append(parts, "commit "+b.Commit)
	}
	if b.Modified {
		parts = append(parts, "modified")
	}
	if b.Date != "" {
		parts = append(parts, b.Date)
	}
	return strings.Join(append(parts, b.Go, b.Platform), ", ")
}

func newVersion() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `version prints the version, the commit and its date. A program built outside a
Git checkout has a commit and a date only if the builder set them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := builtFrom(debug.ReadBuildInfo())
			if out.json() {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(b)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "stet version %v\n", b) // as stet --version does
			return err
		},
	}
	out.add(cmd, cmd.Flags())
	return cmd
}
