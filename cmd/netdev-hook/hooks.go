package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"podrail/internal/hookapi"
	"podrail/pkg/netdev"
)

func createRuntime(hook netdev.Hook) *cli.Command {
	return &cli.Command{
		Name:  "createRuntime",
		Usage: "move NICs into the container whose OCI state is on stdin",
		UsageText: `netdev-hook createRuntime --netdev NAME[,id=ID][,rdma=DEV][,nodes=uverbs0+umad0] ... < state.json

An OCI runtime calls this, since a CDI spec of cdi-gen asks for it. To try it:
  echo '{"ociVersion":"1.0.2","id":"try","pid":4711}' | netdev-hook createRuntime --netdev gpu0rdma0`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "netdev", Usage: "a NIC by its `NAME` on the host, with what the spec knows of it", Required: true},
		},
		Action: func(c *cli.Context) error {
			netdevs, usage := parseNetdevs(c)
			state, err := readState(c.App.Reader)
			if err != nil {
				return failed(hook, state.ID, cmp.Or(usage, err))
			}
			if err := attach(hook, state, netdevs, usage); err != nil {
				// crun runs no poststop for a container that failed to start, so what
				// an earlier hook of this container moved goes home now.
				return failed(hook, state.ID, errors.Join(err, hook.Release(state.ID)))
			}
			return nil
		},
	}
}

func attach(hook netdev.Hook, state specs.State, netdevs []hookapi.Netdev, usage error) error {
	if usage != nil {
		return usage
	}
	if state.Pid <= 0 {
		return errors.New("the state on stdin has no pid: at createRuntime the container's process exists; is this hook in the right stage?")
	}
	return hook.Attach(state.ID, state.Pid, netdevs)
}

// failed keeps an error for an operator, and returns it.
func failed(hook netdev.Hook, container string, err error) error {
	hook.RecordFailure(container, oneLine(err))
	return err
}

func parseNetdevs(c *cli.Context) ([]hookapi.Netdev, error) {
	if c.Args().Present() {
		return nil, usageError{fmt.Errorf("unexpected argument %q", c.Args().First())}
	}
	var all []hookapi.Netdev
	seen := map[string]bool{}
	for _, arg := range c.StringSlice("netdev") {
		nd, err := hookapi.ParseNetdev(arg)
		if err != nil {
			return nil, usageError{err}
		}
		if seen[nd.Name] {
			return nil, usageError{fmt.Errorf("--netdev %s is there twice", nd.Name)}
		}
		seen[nd.Name] = true
		all = append(all, nd)
	}
	return all, nil
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
