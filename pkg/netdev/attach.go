package netdev

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// attach journals all NICs of a call, then moves them one by one. On an error
// the caller releases the container.
func (s *session) attach(container hookapi.Container, target *namespace, netdevs []hookapi.Netdev) error {
	if err := s.clear(container, target, netdevs); err != nil {
		return err
	}
	var snap *snapshot
	var moving []*hookapi.Entry
	for _, nd := range netdevs {
		joined, err := s.join(container, target, nd)
		if err != nil {
			return fmt.Errorf("%s: %w", nd.Name, err)
		}
		if joined {
			continue
		}
		if snap == nil {
			if snap, err = readSnapshot(s.own); err != nil {
				return err
			}
		}
		e, err := s.prepare(container, target, nd, snap, moving)
		if err != nil {
			return fmt.Errorf("%s: %w", nd.Name, err)
		}
		if e != nil {
			moving = append(moving, e)
		}
	}
	for _, e := range moving {
		if err := s.record(e); err != nil {
			return err
		}
	}
	for _, e := range moving {
		if err := s.moveIn(e, target); err != nil {
			return fmt.Errorf("%s: %w", e.Netdev.Name, err)
		}
	}
	return nil
}

// clear settles what earlier containers left of the wanted NICs: it brings home
// what only dead ones hold, and refuses what a living one has elsewhere.
func (s *session) clear(container hookapi.Container, target *namespace, netdevs []hookapi.Netdev) error {
	for _, nd := range netdevs {
		e := s.entryOf(nd)
		if e == nil || e.Phase == hookapi.Attached && e.Owner.Same(target.id) {
			continue
		}
		// A container of the same id elsewhere is this one's former life.
		e.Containers = slices.DeleteFunc(e.Containers, func(c hookapi.Container) bool {
			return c.ID == container.ID && c.Start != container.Start || !alive(c)
		})
		if e.Phase != hookapi.Attached {
			e.Containers = nil // whoever was moving it died, or this call would not have the lock
		}
		if len(e.Containers) > 0 {
			return fmt.Errorf("%s: is held by %s: stop that first, or take the NIC away with `netdev-hook return %s --force`", nd.Name, holders(e), nd.Name)
		}
		if err := s.settle(e); err != nil {
			return fmt.Errorf("%s is not home yet from its last container: %w", nd.Name, err)
		}
	}
	return nil
}

func (s *session) entryOf(nd hookapi.Netdev) *hookapi.Entry {
	i := slices.IndexFunc(s.entries, func(e *hookapi.Entry) bool {
		if nd.ID != "" {
			return e.Identity == nd.ID && e.Home.Same(s.own.id)
		}
		return e.Netdev.Name == nd.Name && e.Home.Same(s.own.id)
	})
	if i < 0 {
		return nil
	}
	return s.entries[i]
}

// join adds a container to those that hold a NIC in their common namespace: the
// second container of a pod, one that was restarted in it, or a hook that the
// engine injected twice.
func (s *session) join(container hookapi.Container, target *namespace, nd hookapi.Netdev) (bool, error) {
	e := s.entryOf(nd)
	if e == nil {
		return false, nil
	}
	if slices.Contains(e.Containers, container) {
		return true, nil
	}
	l, err := inside(e, target)
	if err != nil {
		return false, err
	}
	if l == nil && e.Saved != nil {
		return false, fmt.Errorf("should be in the container's network namespace, but is not there: a workload moved it on; `netdev-hook return %s --force` brings it home", nd.Name)
	}
	e.Containers = append(slices.DeleteFunc(e.Containers, func(c hookapi.Container) bool { return c.ID == container.ID || !alive(c) }), container)
	return true, s.journal.write(e)
}

// prepare makes a NIC's journal entry, after those of the same call that move
// before it: nil when nothing has to move. Nothing has changed when it fails.
func (s *session) prepare(container hookapi.Container, target *namespace, nd hookapi.Netdev, snap *snapshot, before []*hookapi.Entry) (*hookapi.Entry, error) {
	e := &hookapi.Entry{
		Phase: hookapi.Moving, Netdev: nd, Home: s.own.id, Owner: target.id,
		Containers: []hookapi.Container{container}, Since: time.Now().UTC(),
	}
	if nd.Name == nd.RDMA {
		return s.prepareRDMAOnly(e)
	}
	l, err := snap.find(nd)
	if err != nil && nd.Native {
		if err := adopt(e, target); err != nil {
			return nil, err
		}
		return e, s.plan(e)
	}
	if err != nil {
		return nil, err
	}
	if err := snap.mayLeave(l); err != nil {
		return nil, err
	}
	e.Identity = l.Identity()
	there, err := target.conn()
	if err != nil {
		return nil, err
	}
	links, err := there.Links()
	if err != nil {
		return nil, err
	}
	if e.InsideName, err = insideName(nd, links, before); err != nil {
		return nil, err
	}
	e.InsideIndex = freeIndex(links, before, l.Index)
	if e.Saved, err = snap.save(l); err != nil {
		return nil, err
	}
	return e, s.plan(e)
}

// plan checks the NIC's RDMA device, and says where its namespace's pin will be,
// if it needs one: the kernel destroys a virtual NIC with its namespace, and
// sends any other to the initial one, which need not be home.
func (s *session) plan(e *hookapi.Entry) (err error) {
	if err := s.planRDMA(e); err != nil {
		return err
	}
	if virtualEntry(e) || !inInitialNamespace() {
		e.Pin, err = planPin(pinPath(s.journal.dir, e))
	}
	return err
}

// insideName is the name that the NIC gets in the container: its own unless the
// configuration says another. A name that is taken there is an error.
func insideName(nd hookapi.Netdev, links []link.Link, before []*hookapi.Entry) (string, error) {
	name := nd.Name
	if nd.Config != nil && nd.Config.Interface.Name != "" {
		name = nd.Config.Interface.Name
	}
	taken := func(name string) string {
		if other := nameOwner(links, name); other != nil {
			return other.Identity()
		}
		for _, e := range before {
			if e.InsideName == name {
				return e.Identity
			}
		}
		return ""
	}
	if !strings.Contains(name, "%d") {
		if other := taken(name); other != "" {
			return "", fmt.Errorf("the container already has an interface called %q (%s)", name, other)
		}
		return name, nil
	}
	for i := range len(links) + len(before) + 1 {
		if candidate := strings.Replace(name, "%d", strconv.Itoa(i), 1); taken(candidate) == "" {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("no name is free in the container for %q", name) // there is always one
}

// prepareRDMAOnly is prepare for an RDMA device without an interface: in shared
// mode there is nothing to move.
func (s *session) prepareRDMAOnly(e *hookapi.Entry) (*hookapi.Entry, error) {
	if e.Netdev.Config != nil {
		return nil, errors.New("is an RDMA device without an interface: a network configuration has nothing to configure")
	}
	if err := s.planRDMA(e); err != nil || e.RDMA == "" {
		return nil, err
	}
	e.Identity = cmp.Or(e.Netdev.ID, "rdma/"+e.RDMA)
	return e, nil
}

// freeIndex is the interface index that a link will have in a namespace: its
// own where that is free, as the kernel would choose, else one above all others,
// asked for (IFLA_NEW_IFINDEX), so that the journal knows it before the move.
func freeIndex(links []link.Link, before []*hookapi.Entry, index int) int {
	highest, taken := index, false
	for _, l := range links {
		highest, taken = max(highest, l.Index), taken || l.Index == index
	}
	for _, e := range before {
		highest, taken = max(highest, e.InsideIndex), taken || e.InsideIndex == index
	}
	if taken {
		return highest + 1
	}
	return index
}

// inInitialNamespace says whether the calling thread is in the kernel's first
// network namespace, which has sysctls that no other shows (net/core/sysctl_net_core.c).
func inInitialNamespace() bool {
	_, err := os.Stat("/proc/sys/net/core/netdev_max_backlog")
	return err == nil
}

func (s *session) record(e *hookapi.Entry) error {
	if err := s.journal.write(e); err != nil {
		return err
	}
	s.entries = append(s.entries, e)
	return nil
}

// moveIn moves a journaled NIC into the container's namespace and configures it
// there, one request a step: the kernel would take name and settings in the
// request that moves, but leave the NIC moved when one of those fails.
func (s *session) moveIn(e *hookapi.Entry, target *namespace) error {
	if e.Pin != nil {
		if err := mountPin(e.Pin, target); err != nil {
			return err
		}
	}
	if e.Saved != nil {
		move := s.moveLink
		if followsRDMA(e) {
			move = s.moveIPoIB
		}
		if err := move(e, target); err != nil {
			return err
		}
		if err := configureInside(e, target); err != nil {
			return err
		}
	}
	if err := s.moveRDMA(e, target); err != nil {
		return err
	}
	e.Phase = hookapi.Attached
	return s.journal.write(e)
}

func (s *session) moveLink(e *hookapi.Entry, target *namespace) error {
	if e.Netdev.Native {
		if l, err := inside(e, target); l != nil || err != nil {
			return err
		}
	}
	here, err := s.own.conn()
	if err != nil {
		return err
	}
	to := []attribute{number(unix.IFLA_NET_NS_FD, uint32(target.file.Fd()))}
	if e.InsideIndex != e.Saved.Index {
		to = append(to, number(iflaNewIfindex, uint32(e.InsideIndex)))
	}
	if err := here.Do(unix.RTM_SETLINK, 0, link.Raw(linkMessage(e.Saved.Index, 0, 0, to...))); err != nil {
		return explainMove(err)
	}
	return nil
}

func explainMove(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the kernel does not let it leave its network namespace (netns-immutable): %w", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("moving it needs root on the host (CAP_NET_ADMIN over both network namespaces); a rootless engine cannot give a NIC: %w", err)
	}
	return fmt.Errorf("move it into the container: %w", err)
}

// rename names a link; a link that has the name already is left alone.
func rename(c *link.Conn, index int, name string) error {
	links, err := c.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Index == index && l.Name == name {
			return nil
		}
	}
	// Older kernels rename only what is down; after a move it is.
	if err := c.Do(unix.RTM_SETLINK, 0, link.Raw(linkMessage(index, 0, 0, text(unix.IFLA_IFNAME, name)))); err != nil {
		return fmt.Errorf("name it %q: %w", name, err)
	}
	return nil
}

// replay sends messages of one kind. One that is there already is fine.
func replay(c *link.Conn, msgType uint16, what string, msgs [][]byte) error {
	for _, m := range msgs {
		err := c.Do(msgType, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link.Raw(m))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add %s: %w", describe(what, m), err)
		}
	}
	return nil
}

func describe(what string, m []byte) string {
	switch what {
	case "address":
		return "address " + prefixOf(m).String()
	case "route":
		return "route to " + destination(m)
	}
	return "a " + what
}
