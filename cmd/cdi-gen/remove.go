package main

import (
	"fmt"

	"podrail/pkg/cdi"

	"github.com/urfave/cli/v2"
)

func (p *program) removeCommand() *cli.Command {
	return &cli.Command{
		Name:  "remove",
		Usage: "remove the CDI specs of a name",
		UsageText: "cdi-gen remove [--output DIR] [--name NAME]\n\n" +
			"Example: the specs of a pod that has ended\n\n" +
			"   cdi-gen remove --name my-pod",
		Description: "Prints the files removed, and frees the devices of the name. Specs that are not there are no error.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Value: defaultDir, Usage: "`DIR` of the specs"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` that they were generated with"},
			&cli.StringFlag{Name: "gpu-kind", Value: cdi.DefaultGPUKind, Usage: "`VENDOR/CLASS` of the GPUs' spec"},
			&cli.StringFlag{Name: "nic-kind", Value: cdi.DefaultNICKind, Usage: "`VENDOR/CLASS` of the NICs' spec"},
		},
		Action: p.remove,
	}
}

func (p *program) remove(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	kinds := []string{c.String("gpu-kind"), c.String("nic-kind")}
	for _, kind := range kinds {
		if err := cdi.ValidateKind(kind); err != nil {
			return &usageError{err}
		}
	}
	if err := checkName(c); err != nil {
		return err
	}
	removed, err := cdi.Remove(c.String("output"), kinds, c.String("name"))
	for _, path := range removed {
		fmt.Fprintln(p.stdout, path)
	}
	if err != nil || c.String("name") == "" {
		return err
	}
	return p.free(c.String("name"))
}

// checkName refuses an empty --name beside bad ones: it would be everybody's
// specs, where a script's variable for a pod's was not set.
func checkName(c *cli.Context) error {
	if c.IsSet("name") && c.String("name") == "" {
		return usagef("--name is empty: expected a name, or no --name for specs without one")
	}
	if err := cdi.ValidateName(c.String("name")); err != nil {
		return usagef("--%w", err)
	}
	return nil
}
