// Cdi-gen writes CDI specs that list only what a pod was given: its GPUs and
// its RDMA NICs. See `cdi-gen --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"podrail/internal/allocate"

	"github.com/urfave/cli/v2"
)

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// program is one run: where it reads and writes.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger
}

// usageError is about how cdi-gen was called.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// run is main without the process.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{stdin: stdin, stdout: stdout, stderr: stderr}
	p.log = newLogger(stderr, "text", slog.LevelInfo)
	err := p.app().RunContext(context.Background(), args)
	if err == nil {
		return exitDone
	}
	p.fail(err)
	var usage *usageError
	var syntax *allocate.SyntaxError
	if errors.As(err, &usage) || errors.As(err, &syntax) {
		return exitUsage
	}
	return exitFailed
}

// fail prints an error as one line, or as a log record where JSON was asked for.
func (p *program) fail(err error) {
	if _, text := p.log.Handler().(*textHandler); !text {
		p.log.Error(err.Error())
		return
	}
	fmt.Fprintf(p.stderr, "cdi-gen: %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
}

func (p *program) app() *cli.App {
	app := &cli.App{
		Name:  "cdi-gen",
		Usage: "write CDI specs for the GPUs and RDMA NICs that a pod was given",
		UsageText: "cdi-gen COMMAND [OPTION ...]\n\n" +
			"Example: write specs for two GPUs and two NICs, and use them\n\n" +
			"   cdi-gen generate --gpus 0,1 --nics gpu0rdma0,gpu1rdma0\n" +
			"   podman run --device nvidia.com/gpu=all --device dra.net/nic=all IMAGE",
		HideVersion: true,
		Reader:      p.stdin,
		Writer:      p.stdout,
		ErrWriter:   p.stderr,
		Flags:       append(p.logFlags(), &cli.BoolFlag{Name: "version", Usage: "print the version", DisableDefaultText: true}),
		Before:      p.setLog,
		Action: func(c *cli.Context) error {
			if c.Bool("version") {
				return p.version(c)
			}
			if c.Args().Present() {
				return usagef("unknown command %q: see cdi-gen --help", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
		OnUsageError: onUsageError,
		// The default calls os.Exit.
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: []*cli.Command{
			p.generateCommand(),
			p.allocationCommand(),
			p.listCommand(),
			p.topologyCommand(),
			p.validateCommand(),
			p.removeCommand(),
			p.installCommand(),
			p.ldcacheCommand(),
			p.versionCommand(),
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = onUsageError
		c.Flags = append(c.Flags, p.logFlags()...)
		c.Before = p.setLog
		c.HideHelpCommand = true
	}
	return app
}

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// onUsageError keeps urfave/cli from printing the whole help before the error.
func onUsageError(c *cli.Context, err error, _ bool) error {
	where := "cdi-gen"
	if c.Command != nil && c.Command.Name != "" && c.Command.Name != where {
		where += " " + c.Command.Name
	}
	return usagef("%w: see %s --help", err, where)
}

// noArgs refuses arguments where a command takes none.
func noArgs(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("%s takes no argument %q: see cdi-gen %s --help", c.Command.Name, c.Args().First(), c.Command.Name)
	}
	return nil
}
