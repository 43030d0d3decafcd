package netdev

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// returnWait bounds the wait for a NIC that the kernel is returning: it takes
// apart a network namespace some 20 ms after the last user, longer under load.
// What comes later is found by reconcile.
const returnWait = 3 * time.Second

// bringHome brings a NIC home from wherever it is, restores it, and forgets it.
// It may be called again after any failure or interruption.
func (s *session) bringHome(e *hookapi.Entry) error {
	if e.Phase == hookapi.Attached {
		e.Phase = hookapi.Returning
		// A full disk does not keep a NIC away. If this call is interrupted then,
		// reconcile finds the NIC home, or its containers dead.
		_ = s.journal.write(e)
	}
	err := s.fetchAndRestore(e)
	if err != nil {
		e.LastError = err.Error()
		return errors.Join(err, s.journal.write(e))
	}
	if e.Pin != nil {
		if err := unpin(e.Pin); err != nil {
			e.LastError = err.Error()
			return errors.Join(err, s.journal.write(e))
		}
	}
	s.entries = slices.DeleteFunc(s.entries, func(other *hookapi.Entry) bool { return other == e })
	return s.journal.remove(e)
}

func (s *session) fetchAndRestore(e *hookapi.Entry) error {
	home, err := s.namespace(e.Home, nil, nil)
	if errors.Is(err, errNamespaceGone) {
		return nil // there is no home to go to; what was there is gone, too
	}
	if err != nil {
		return err
	}
	owner, err := s.namespace(e.Owner, e.Pin, e.Containers)
	if err != nil && !errors.Is(err, errNamespaceGone) {
		return err
	}
	// RDMA first: a RoCE device's GIDs follow its netdev.
	if err := fetchRDMA(e, home, owner); err != nil {
		return err
	}
	if e.Saved == nil { // an RDMA device without an interface
		return nil
	}
	if err := s.fetch(e, home, owner); err != nil {
		return err
	}
	return restore(e, home)
}

// fetch makes sure that the NIC is at home. A virtual NIC that nothing kept is
// gone with its namespace: that is no error any more, and nothing is left to do.
func (s *session) fetch(e *hookapi.Entry, home, owner *namespace) error {
	if owner != nil {
		l, err := inside(e, owner)
		if err != nil {
			return err
		}
		if l != nil {
			return fetchFrom(e, home, owner, *l)
		}
	}
	deadline := time.Now().Add(returnWait)
	for {
		l, err := atHome(e, home)
		if l != nil || err != nil {
			return err
		}
		if owner != nil || virtualEntry(e) || time.Now().After(deadline) {
			return s.fetchFromElsewhere(e, home)
		}
		time.Sleep(5 * time.Millisecond) // the kernel is at work: see returnWait
	}
}

// fetchFromElsewhere looks for a NIC that a workload moved on to a namespace of
// its own.
func (s *session) fetchFromElsewhere(e *hookapi.Entry, home *namespace) error {
	seen := map[uint64]bool{home.id.Inode: true}
	paths := append(namespaceMounts("/proc/thread-self", ""), namespaceMounts("/proc/1", "/proc/1/root")...)
	for _, path := range append(paths, processNamespaces()...) {
		n, err := openNamespace(path)
		if err != nil {
			continue
		}
		found, err := fetchIfThere(e, home, n, seen)
		n.close()
		if found || err != nil {
			return err
		}
	}
	if virtualEntry(e) {
		s.reports = append(s.reports, fmt.Sprintf("%s (%s) is gone: the workload deleted it, or its network namespace died unpinned", e.Netdev.Name, e.Identity))
		return nil
	}
	if deviceGone(e.Identity) {
		s.reports = append(s.reports, fmt.Sprintf("%s is gone for good: its device %s does not exist any more (a VF that was removed, a NIC that was unplugged)", e.Netdev.Name, e.Identity))
		return nil
	}
	return fmt.Errorf("is neither home nor in a network namespace that can be seen from here; reconcile looks again")
}

// deviceGone says whether the device of a NIC with this identity is not on its
// bus any more.
func deviceGone(identity string) bool {
	bus, dev, ok := strings.Cut(identity, "/")
	dev, _, _ = strings.Cut(dev, "/")
	devices := "/sys/bus/" + bus + "/devices"
	if _, err := os.Stat(devices); !ok || dev == "" || err != nil {
		return false // not a device's identity, or a /sys that does not say
	}
	_, err := os.Lstat(devices + "/" + dev)
	return errors.Is(err, os.ErrNotExist)
}

func fetchIfThere(e *hookapi.Entry, home, n *namespace, seen map[uint64]bool) (bool, error) {
	if seen[n.id.Inode] {
		return false, nil
	}
	seen[n.id.Inode] = true
	c, err := n.conn()
	if err != nil {
		return false, nil
	}
	links, err := c.Links()
	if err != nil {
		return false, nil
	}
	i := slices.IndexFunc(links, func(l link.Link) bool {
		return virtualEntry(e) && sameMake(l, e) && slices.Equal(parseMAC(l.MAC), e.Saved.Attributes[unix.IFLA_ADDRESS]) || samePhysical(l, e)
	})
	if i < 0 {
		return false, nil
	}
	return true, fetchFrom(e, home, n, links[i])
}

// fetchFrom moves the NIC home out of a namespace. It leaves behind what would
// hinder it: a master, and names that the workload gave it.
func fetchFrom(e *hookapi.Entry, home, from *namespace, l link.Link) error {
	c, err := from.conn()
	if err != nil {
		return err
	}
	if l.Master != 0 {
		if err := c.Do(unix.RTM_SETLINK, 0, link.Raw(linkMessage(l.Index, 0, 0, number(unix.IFLA_MASTER, 0)))); err != nil {
			return fmt.Errorf("take it out of its master: %w", err)
		}
	}
	if mac := e.Saved.Attributes[unix.IFLA_ADDRESS]; virtualEntry(e) && !slices.Equal(parseMAC(l.MAC), mac) {
		// Should this be interrupted behind the move, it is by its MAC that a virtual
		// NIC with a name of the workload's is known at home.
		if err := c.Do(unix.RTM_SETLINK, 0, link.Raw(linkMessage(l.Index, 0, 0, attribute{kind: unix.IFLA_ADDRESS, value: mac}))); err != nil {
			return fmt.Errorf("give it its MAC back: %w", err)
		}
	}
	// Names that it did not have at home could be somebody's there.
	added := slices.DeleteFunc(slices.Clone(l.AltNames), func(n string) bool { return slices.Contains(e.Saved.AltNames, n) })
	if err := altNames(c, unix.RTM_DELLINKPROP, l.Index, added); err != nil {
		return err
	}
	l.AltNames = slices.DeleteFunc(slices.Clone(l.AltNames), func(n string) bool { return slices.Contains(added, n) })
	return moveHome(e, home, c, l)
}

// moveHome moves the NIC, keeping its current name if that is free at home: the
// next step gives it its own. Names that are somebody else's there by now would
// stop the move.
func moveHome(e *hookapi.Entry, home *namespace, from *link.Conn, l link.Link) error {
	there, err := home.conn()
	if err != nil {
		return err
	}
	links, err := there.Links()
	if err != nil {
		return err
	}
	to := []attribute{number(unix.IFLA_NET_NS_FD, uint32(home.file.Fd()))}
	indexTaken := slices.ContainsFunc(links, func(other link.Link) bool { return other.Index == e.Saved.Index })
	if l.Index != e.Saved.Index && !indexTaken {
		to = append(to, number(iflaNewIfindex, uint32(e.Saved.Index)))
	}
	if nameOwner(links, l.Name) != nil {
		to = append(to, text(unix.IFLA_IFNAME, "dev%d"))
	}
	taken := slices.DeleteFunc(slices.Clone(l.AltNames), func(n string) bool { return nameOwner(links, n) == nil })
	if err := altNames(from, unix.RTM_DELLINKPROP, l.Index, taken); err != nil {
		return err
	}
	if err := from.Do(unix.RTM_SETLINK, 0, link.Raw(linkMessage(l.Index, 0, 0, to...))); err != nil {
		return fmt.Errorf("move it home: %w", err)
	}
	return nil
}

// inside is the NIC in its owner's namespace, nil when it is not there. The
// index is the kernel's and stays, whatever the workload calls the NIC.
func inside(e *hookapi.Entry, owner *namespace) (*link.Link, error) {
	if e.Saved == nil {
		return nil, nil // an RDMA device without an interface
	}
	c, err := owner.conn()
	if err != nil {
		return nil, err
	}
	links, err := c.Links()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(links, func(l link.Link) bool {
		return l.Index == e.InsideIndex && (virtualEntry(e) && sameMake(l, e) || samePhysical(l, e))
	})
	if i < 0 {
		i = slices.IndexFunc(links, func(l link.Link) bool { return samePhysical(l, e) })
	}
	if i < 0 {
		return nil, nil
	}
	return &links[i], nil
}

// atHome is the NIC at home, nil when it is not there.
func atHome(e *hookapi.Entry, home *namespace) (*link.Link, error) {
	if e.Saved == nil {
		return nil, nil // an RDMA device without an interface
	}
	c, err := home.conn()
	if err != nil {
		return nil, err
	}
	links, err := c.Links()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(links, func(l link.Link) bool { return l.Identity() == e.Identity && looksLike(l, e) })
	if i < 0 {
		i = slices.IndexFunc(links, func(l link.Link) bool { return samePhysical(l, e) })
	}
	if i < 0 {
		return nil, nil
	}
	return &links[i], nil
}

// looksLike tells the NIC from others that have its identity: a new virtual link
// that got the index of one that is away, or a representor of its port.
func looksLike(l link.Link, e *hookapi.Entry) bool {
	mac := e.Saved.Attributes[unix.IFLA_ADDRESS]
	named := l.Name == e.Saved.Name || l.Name == e.InsideName || slices.Equal(parseMAC(l.MAC), mac)
	return named && sameMake(l, e)
}

// samePhysical tells a NIC with a device from what else that device has: the
// representors of its VFs have no permanent MAC, or one of their own, and an IPoIB
// interface is of another kind than an Ethernet one.
func samePhysical(l link.Link, e *hookapi.Entry) bool {
	return !virtualEntry(e) && l.Identity() == e.Identity && l.Kind == e.Saved.Kind &&
		(e.Saved.PermanentMAC == "" || sameHardware(parseMAC(l.PermanentMAC), parseMAC(e.Saved.PermanentMAC)))
}

// sameMake: what a workload cannot give a link of its own making in the NIC's
// place, which would come to the host with the NIC's name and addresses.
func sameMake(l link.Link, e *hookapi.Entry) bool {
	return l.Kind == e.Saved.Kind && l.Peer == e.Saved.Peer
}

func virtualEntry(e *hookapi.Entry) bool { return len(e.Identity) > 8 && e.Identity[:8] == "ifindex/" }

// isHome says whether the NIC of an attached entry is home all the same.
func (s *session) isHome(e *hookapi.Entry) (bool, error) {
	home, err := s.namespace(e.Home, nil, nil)
	if err != nil {
		return false, nil
	}
	l, err := atHome(e, home)
	return l != nil, err
}
