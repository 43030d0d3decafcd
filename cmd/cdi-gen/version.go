package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

func (p *program) versionCommand() *cli.Command {
	return &cli.Command{
		Name:      "version",
		Usage:     "print version, commit and Go version",
		UsageText: "cdi-gen version\n\nExample:\n\n   cdi-gen version",
		Action:    p.version,
	}
}

func (p *program) version(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	_, err := fmt.Fprintln(p.stdout, "cdi-gen "+buildVersion())
	return err
}

// buildVersion is what the go command put into the program: no number is kept
// by hand.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown build) " + runtime.Version()
	}
	commit, dirty := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " (modified)"
		}
	}
	return fmt.Sprintf("%s commit %s%s %s", info.Main.Version, commit, dirty, info.GoVersion)
}
