// Command netdev-hook is the OCI hook that cdi-gen's specs name: it moves a NIC
// into a container's network namespace and brings it home exactly as it was.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/urfave/cli/v2"

	"podrail/internal/hookapi"
	"podrail/pkg/netdev"
)

// lockWait is below the 60 s that cdi-gen's specs give the hook.
const lockWait = 40 * time.Second

// usageError is an error of whoever wrote the command line: exit status 2.
type usageError struct{ error }

// The main goroutine keeps the process's first thread: package netdev throws
// away threads that were in other namespaces, and the first cannot be thrown away.
func init() { runtime.LockOSThread() }

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	hook := netdev.Hook{Dir: hookapi.Dir, LockWait: lockWait}
	app := &cli.App{
		Name:            "netdev-hook",
		Usage:           "moves NICs into containers and brings them home (an OCI hook)",
		UsageText:       "netdev-hook COMMAND [OPTIONS]",
		HideHelpCommand: true,
		// A --netdev argument has commas of its own.
		DisableSliceFlagSeparator: true,
		Reader:                    stdin,
		Writer:                    stdout,
		ErrWriter:                 stderr,
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return usageError{err} },
		Commands: []*cli.Command{
			createRuntime(hook), poststop(hook), reconcile(hook), status(hook), giveBack(hook), version(),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageError{fmt.Errorf("unknown command %q; see `netdev-hook --help`", c.Args().First())}
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		if c.OnUsageError == nil {
			c.OnUsageError = app.OnUsageError
		}
	}
	err := app.Run(args)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "netdev-hook: "+oneLine(err))
	if usage := (usageError{}); errors.As(err, &usage) {
		return 2
	}
	return 1
}
