package netdev

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// planRDMA checks the RDMA device that comes with a NIC, before anything moves:
// that its nodes are those that the container was given, and, in exclusive mode,
// that the driver lets it move. In shared mode it stays where it is.
func (s *session) planRDMA(e *hookapi.Entry) error {
	if e.Netdev.RDMA == "" {
		return nil
	}
	if err := checkNodes(e.Netdev); err != nil {
		return err
	}
	return s.own.do(func() error {
		c, err := link.OpenRDMA()
		if err != nil {
			return err
		}
		defer c.Close()
		index, ok, err := c.Index(e.Netdev.RDMA)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("its RDMA device %s is not in this network namespace: somebody moved it; `rdma dev` lists what is here", e.Netdev.RDMA)
		}
		exclusive, err := c.Exclusive()
		if err != nil || !exclusive {
			return err
		}
		e.RDMA = e.Netdev.RDMA
		return probeRDMA(c, index, e.RDMA, s.own)
	})
}

// probeRDMA asks the kernel to move an RDMA device on behalf of a thread in a
// namespace where the device is not. It answers EOPNOTSUPP for a driver that
// cannot (no disassociate_ucontext), ENODEV for one that can, and changes nothing
// (ib_device_set_netns_put in drivers/infiniband/core/device.c).
func probeRDMA(c *link.RDMAConn, index uint32, name string, own *namespace) error {
	answer := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and thrown away
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			answer <- err
			return
		}
		answer <- c.SetNamespace(index, own.file.Fd())
	}()
	err := <-answer
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the driver of its RDMA device %s cannot move it to another network namespace: use RDMA in shared mode (`rdma system set netns shared`), or give the container no RDMA (cdi-gen generate --nics without it)", name)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("probe whether its RDMA device %s can move: %w", name, err)
	}
	return nil
}

// checkNodes compares a device's nodes with those that the container was given.
// A move gives a device new ones, with the lowest free numbers.
func checkNodes(nd hookapi.Netdev) error {
	have, err := link.RDMANodes(nd.RDMA)
	if err != nil {
		return fmt.Errorf("read the nodes of RDMA device %s: %w", nd.RDMA, err)
	}
	for _, want := range nd.Nodes {
		if !slices.Contains(have, want) {
			return fmt.Errorf("the container has the node %s for RDMA device %s, whose nodes are [%s] now: the container would open another's or none; run `cdi-gen generate` again and start it anew", want, nd.RDMA, strings.Join(have, " "))
		}
	}
	return nil
}

// moveRDMA moves the RDMA device after its netdev, so that its GIDs are those of
// the container's addresses, and makes sure that they are there.
func (s *session) moveRDMA(e *hookapi.Entry, target *namespace) error {
	if e.RDMA != "" {
		if err := moveRDMADevice(e.RDMA, s.own, target); err != nil {
			return err
		}
		if err := checkNodes(e.Netdev); err != nil {
			return err
		}
	}
	if e.Netdev.RDMA == "" {
		return nil
	}
	return awaitGIDs(e, target)
}

// moveRDMADevice moves it between two namespaces; where it is not in the first,
// it must be in the second already.
func moveRDMADevice(name string, from, to *namespace) error {
	return from.do(func() error {
		c, err := link.OpenRDMA()
		if err != nil {
			return err
		}
		defer c.Close()
		index, ok, err := c.Index(name)
		if err != nil || !ok {
			return err
		}
		if err := c.SetNamespace(index, to.file.Fd()); err != nil {
			return fmt.Errorf("move its RDMA device %s: %w", name, err)
		}
		return nil
	})
}

// fetchRDMA brings the RDMA device home. When its namespace died, the kernel has
// returned it to the initial one, under its name.
func fetchRDMA(e *hookapi.Entry, home, owner *namespace) error {
	if e.RDMA == "" || owner == nil {
		return nil
	}
	return moveRDMADevice(e.RDMA, owner, home)
}
