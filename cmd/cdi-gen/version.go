package main

import (
	"fmt"

	"podrail/internal/buildinfo"

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
	_, err := fmt.Fprintln(p.stdout, "cdi-gen "+buildinfo.Version())
	return err
}
