package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
)

// netdevArgs are the NICs of a createRuntime call, in the order of the command
// line: a --config belongs to the --netdev before it.
type netdevArgs struct{ all []hookapi.Netdev }

func (a *netdevArgs) check(rest cli.Args) error {
	switch {
	case rest.Present():
		return usageError{fmt.Errorf("unexpected argument %q", rest.First())}
	case len(a.all) == 0:
		return usageError{errors.New("--netdev is missing: which NIC?")}
	}
	return nil
}

type netdevValue struct{ *netdevArgs }

func (v netdevValue) Set(s string) error {
	nd, err := hookapi.ParseNetdev(s)
	if err != nil {
		return err
	}
	for _, other := range v.all {
		if other.Name == nd.Name {
			return fmt.Errorf("--netdev %s is there twice", nd.Name)
		}
	}
	v.all = append(v.all, nd)
	return nil
}

func (v netdevValue) String() string { return "" }

type configValue struct{ *netdevArgs }

func (v configValue) Set(s string) error {
	if len(v.all) == 0 || v.all[len(v.all)-1].Config != nil {
		return errors.New("--config belongs behind the --netdev that it is for, once")
	}
	c, err := hookapi.ParseNetworkConfig([]byte(s))
	if err != nil {
		return fmt.Errorf("--netdev %s: %w", v.all[len(v.all)-1].Name, err)
	}
	v.all[len(v.all)-1].Config = c
	return nil
}

func (v configValue) String() string { return "" }

// memlockValue is a limit in bytes; 0 leaves the container's as it is.
type memlockValue uint64

func (m *memlockValue) Set(s string) error {
	n, err := hookapi.ParseMemlock(s)
	*m = memlockValue(n)
	return err
}

func (m *memlockValue) String() string { return "" }

// raise sets the container's limit of locked memory, which its processes inherit:
// RDMA registers memory, and in a user namespace CAP_IPC_LOCK does not lift it.
func (m *memlockValue) raise(pid int) error {
	if *m == 0 {
		return nil
	}
	limit := unix.Rlimit{Cur: uint64(*m), Max: uint64(*m)}
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, nil, &old); err == nil && old.Cur >= limit.Cur {
		return nil
	} else if err == nil {
		limit.Max = max(limit.Max, old.Max)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, &limit, nil); err != nil {
		return fmt.Errorf("raise the container's limit of locked memory to %d bytes: %w; the engine runs the hook without CAP_SYS_RESOURCE, or its own limit is lower (LimitMEMLOCK of its service)", uint64(*m), err)
	}
	return nil
}
