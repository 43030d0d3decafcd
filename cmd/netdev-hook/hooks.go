package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"podrail/internal/hookapi"
	"podrail/pkg/netdev"
)

func createRuntime(hook netdev.Hook) *cli.Command {
	args, memlock := new(netdevArgs), new(memlockValue)
	return &cli.Command{
		Name:  "createRuntime",
		Usage: "move NICs into the container whose OCI state is on stdin",
		UsageText: `netdev-hook createRuntime --netdev NAME[,id=ID][,rdma=DEV][,nodes=uverbs0+umad0] [--config JSON] ... < state.json

An OCI runtime calls this, since a CDI spec of cdi-gen asks for it. To try it:
  echo '{"ociVersion":"1.0.2","id":"try","pid":4711}' | netdev-hook createRuntime --netdev gpu0rdma0`,
		Flags: []cli.Flag{
			&cli.GenericFlag{Name: "netdev", Usage: "a NIC by its `NAME` on the host, with what the spec knows of it", Value: netdevValue{args}},
			&cli.GenericFlag{Name: "config", Usage: "what the NIC before it shall be in the container: DraNet's NetworkConfig as `JSON`", Value: configValue{args}},
			&cli.GenericFlag{Name: "memlock", Usage: "let the container lock `SIZE` bytes of memory (RDMA does), or unlimited", Value: memlock},
		},
		OnUsageError: func(c *cli.Context, err error, _ bool) error {
			return start(hook, c.App.Reader, func(specs.State) error { return usageError{err} })
		},
		Action: func(c *cli.Context) error {
			return start(hook, c.App.Reader, func(state specs.State) error {
				if err := args.check(c.Args()); err != nil {
					return err
				}
				return attach(hook, state, args.all, memlock)
			})
		},
	}
}

// start reads the container's state, and does what a container's start needs. If
// that fails, all that the container holds goes home: crun runs no poststop then,
// and an earlier hook of the same container may have moved something.
func start(hook netdev.Hook, stdin io.Reader, do func(specs.State) error) error {
	state, err := readState(stdin)
	if err == nil {
		err = do(state)
	}
	if err != nil && state.ID != "" && checkID(state.ID) == nil {
		err = errors.Join(err, hook.Release(state.ID))
	}
	if err != nil {
		return failed(hook, state.ID, err)
	}
	return nil
}

func attach(hook netdev.Hook, state specs.State, netdevs []hookapi.Netdev, memlock *memlockValue) error {
	if err := netdev.TrustedExecutable(); err != nil {
		return err
	}
	if state.Pid <= 0 {
		return errors.New("the state on stdin has no pid: at createRuntime the container's process exists; is this hook in the right stage?")
	}
	if err := hook.Attach(state.ID, state.Pid, netdevs); err != nil {
		return err
	}
	return memlock.raise(state.Pid)
}

// failed keeps an error for an operator, and returns it.
func failed(hook netdev.Hook, container string, err error) error {
	hook.RecordFailure(container, oneLine(err))
	return err
}

func poststop(hook netdev.Hook) *cli.Command {
	return &cli.Command{
		Name:  "poststop",
		Usage: "bring home the NICs of the container whose OCI state is on stdin",
		UsageText: `netdev-hook poststop < state.json

An OCI runtime calls this. It is a success for a container without NICs.
  echo '{"ociVersion":"1.0.2","id":"try"}' | netdev-hook poststop`,
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageError{fmt.Errorf("unexpected argument %q", c.Args().First())}
			}
			state, err := readState(c.App.Reader)
			if err == nil {
				err = hook.Release(state.ID)
			}
			if err != nil {
				return failed(hook, state.ID, err)
			}
			return nil
		},
	}
}
