package main

import (
	"fmt"

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
			netdevs, err := parseNetdevs(c)
			if err != nil {
				return usageError{err}
			}
			state, err := readState(c.App.Reader)
			if err == nil && state.Pid <= 0 {
				err = fmt.Errorf("the state on stdin has no pid: at createRuntime the container's process exists; is this hook in the right stage?")
			}
			if err == nil {
				err = hook.Attach(state.ID, state.Pid, netdevs)
			}
			if err != nil {
				hook.RecordFailure(state.ID, oneLine(err))
			}
			return err
		},
	}
}

func parseNetdevs(c *cli.Context) ([]hookapi.Netdev, error) {
	if c.Args().Present() {
		return nil, fmt.Errorf("unexpected argument %q", c.Args().First())
	}
	var all []hookapi.Netdev
	seen := map[string]bool{}
	for _, arg := range c.StringSlice("netdev") {
		nd, err := hookapi.ParseNetdev(arg)
		if err != nil {
			return nil, err
		}
		if seen[nd.Name] {
			return nil, fmt.Errorf("--netdev %s is there twice", nd.Name)
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
				hook.RecordFailure(state.ID, oneLine(err))
			}
			return err
		},
	}
}
