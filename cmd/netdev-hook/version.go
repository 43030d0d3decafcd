package main

import (
	"fmt"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

func version() *cli.Command {
	return &cli.Command{
		Name:      "version",
		Usage:     "show the version and the commit this was built from",
		UsageText: "netdev-hook version",
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageError{fmt.Errorf("unexpected argument %q", c.Args().First())}
			}
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return fmt.Errorf("this program was built without module support")
			}
			commit, modified := "unknown", ""
			for _, s := range info.Settings {
				switch {
				case s.Key == "vcs.revision":
					commit = s.Value
				case s.Key == "vcs.modified" && s.Value == "true":
					modified = ", modified"
				}
			}
			fmt.Fprintf(c.App.Writer, "netdev-hook %s (commit %s%s, %s)\n", info.Main.Version, commit, modified, info.GoVersion)
			return nil
		},
	}
}
