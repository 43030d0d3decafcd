package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"podrail/internal/buildinfo"
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
			_, err := fmt.Fprintln(c.App.Writer, "netdev-hook "+buildinfo.Version())
			return err
		},
	}
}
