package main

import (
	"fmt"
	"os"
	"path/filepath"

	"podrail/pkg/cdi"

	"github.com/urfave/cli/v2"
)

func (p *program) installCommand() *cli.Command {
	return &cli.Command{
		Name:      "install",
		Usage:     "copy cdi-gen and netdev-hook to a directory",
		ArgsUsage: "DIR",
		UsageText: "cdi-gen install DIR\n\n" +
			"Example: an init container fills a volume for the pod's other containers\n\n" +
			"   cdi-gen install /podrail",
		Description: "Both programs are there whole, or neither is changed, also where they are running. A Kubernetes\n" +
			"emptyDir, which everyone may write to, becomes root's alone (0755).",
		Action: p.install,
	}
}

func (p *program) install(c *cli.Context) error {
	if c.NArg() != 1 || c.Args().First() == "" {
		return usagef("install takes one directory: see cdi-gen install --help")
	}
	dir := c.Args().First()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var files []cdi.File
	for _, source := range []string{self, filepath.Join(filepath.Dir(self), "netdev-hook")} {
		data, err := os.ReadFile(source)
		if err != nil {
			return fmt.Errorf("install copies this program and the netdev-hook beside it: %w", err)
		}
		name := map[bool]string{true: "cdi-gen", false: "netdev-hook"}[source == self]
		files = append(files, cdi.File{Path: filepath.Join(dir, name), Data: data, Program: true})
	}
	return p.putFiles(dir, files)
}

// putFiles writes files to a directory that nobody else can change, and prints
// their names.
func (p *program) putFiles(dir string, files []cdi.File) error {
	note, err := cdi.PrepareDir(dir)
	if err != nil {
		return err
	}
	if note != "" {
		p.log.Warn(note)
	}
	if _, err := cdi.Replace(dir, files, nil); err != nil {
		return err
	}
	for _, f := range files {
		fmt.Fprintln(p.stdout, f.Path)
	}
	return nil
}
