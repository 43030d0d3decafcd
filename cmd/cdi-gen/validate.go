package main

import (
	"fmt"
	"os"
	"strings"

	"podrail/pkg/cdi"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
)

func (p *program) validateCommand() *cli.Command {
	return &cli.Command{
		Name:      "validate",
		Usage:     "check CDI specs: schema, conflicts, and whether ours still fit this host",
		ArgsUsage: "[DIR|FILE ...]",
		UsageText: "cdi-gen validate [--root DIR] [DIR|FILE ...]\n\n" +
			"Example: all specs that engines read by default (/etc/cdi, " + defaultDir + ")\n\n" +
			"   cdi-gen validate",
		Description: "Prints what is wrong, a line each, and exits 1 if anything is. Paths in the specs are looked up below --root;\n" +
			"what cdi-gen wrote is compared with what it would write now: driver, GPUs, nodes, libraries, NICs.",
		Flags:  []cli.Flag{rootFlag()},
		Action: p.validate,
	}
}

func (p *program) validate(c *cli.Context) error {
	paths := c.Args().Slice()
	for _, path := range paths {
		if strings.HasPrefix(path, "-") {
			return usagef("validate %s: options go before files", path)
		}
	}
	if len(paths) == 0 {
		for _, dir := range []string{"/etc/cdi", defaultDir} {
			if _, err := os.Stat(dir); err == nil {
				paths = append(paths, dir)
			}
		}
	}
	root, err := discover.OpenRoot(c.String("root"))
	if err != nil {
		return err
	}
	defer root.Close()
	files, findings, err := cdi.Validate(root, paths)
	if err != nil {
		return err
	}
	for _, f := range findings {
		fmt.Fprintln(p.stdout, f)
	}
	if len(findings) > 0 {
		return fmt.Errorf("%s in %s: generate what is ours again (cdi-gen generate), remove or mend the rest",
			count(len(findings), "finding"), count(len(files), "file"))
	}
	p.log.Info("valid", "files", len(files))
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
