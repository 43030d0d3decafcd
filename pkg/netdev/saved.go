package netdev

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// IFLA_* numbers that package unix does not name (linux/if_link.h).
const (
	iflaNewIfindex     = 49 // IFLA_NEW_IFINDEX, Linux 5.13
	iflaGROMaxSize     = 58
	iflaGSOIPv4MaxSize = 63
	iflaGROIPv4MaxSize = 64
)

// linkAttributes are the settings of a link that RTM_SETLINK takes as
// RTM_NEWLINK reports them, and that a workload can change.
var linkAttributes = [...]uint16{
	unix.IFLA_ADDRESS, unix.IFLA_MTU, unix.IFLA_TXQLEN, unix.IFLA_GROUP,
	unix.IFLA_GSO_MAX_SEGS, unix.IFLA_GSO_MAX_SIZE, iflaGROMaxSize, iflaGSOIPv4MaxSize, iflaGROIPv4MaxSize,
}

// snapshot is a network namespace as a few dumps show it: all NICs of one call
// are read from the same.
type snapshot struct {
	links      []link.Link
	raw        map[int][]byte // RTM_NEWLINK messages by interface index
	addresses  [][]byte
	routes     [][]byte
	rules      [][]byte
	neighbours [][]byte
	qdiscs     [][]byte
	readAt     int64
}

// readSnapshot reads the network namespace n.
func readSnapshot(n *namespace) (*snapshot, error) {
	c, err := n.conn()
	if err != nil {
		return nil, err
	}
	s := &snapshot{readAt: bootTime()}
	if s.links, s.raw, err = readLinks(c); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		of      *[][]byte
		what    string
		msgType uint16
		family  int
	}{
		{&s.addresses, "addresses", unix.RTM_GETADDR, unix.AF_UNSPEC},
		{&s.routes, "routes", unix.RTM_GETROUTE, unix.AF_INET},
		{&s.routes, "routes", unix.RTM_GETROUTE, unix.AF_INET6},
		{&s.rules, "rules", unix.RTM_GETRULE, unix.AF_INET},
		{&s.rules, "rules", unix.RTM_GETRULE, unix.AF_INET6},
		{&s.neighbours, "neighbours", unix.RTM_GETNEIGH, unix.AF_UNSPEC},
	} {
		msgs, err := c.Dump(d.msgType, d.family)
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", d.what, n.id, err)
		}
		*d.of = append(*d.of, msgs...)
	}
	s.qdiscs, err = dumpQdiscs(c)
	return s, err
}

// readLinks reads the links of a namespace, and their messages by index.
func readLinks(c *link.Conn) ([]link.Link, map[int][]byte, error) {
	links, msgs, err := c.LinkMessages()
	raw := make(map[int][]byte, len(links))
	for i, l := range links {
		raw[l.Index] = msgs[i]
	}
	return links, raw, err
}

// save is all of a link that a move loses. It fails, naming it, when there is
// something that could not be put back. The calling thread must be in the
// snapshot's namespace.
func (s *snapshot) save(l link.Link) (*hookapi.Saved, error) {
	saved := &hookapi.Saved{
		Name: l.Name, AltNames: l.AltNames, Alias: l.Alias, Index: l.Index, Kind: l.Kind, Peer: l.Peer, PermanentMAC: l.PermanentMAC, Flags: l.Flags,
		Attributes: attributesOf(s.raw[l.Index]),
		Addresses:  addressesOf(s.addresses, l.Index),
		Neighbours: neighboursOf(s.neighbours, l.Index),
		Sysctls:    readSysctls(l.Name),
		ReadAt:     s.readAt,
	}
	saved.Features, saved.PrivateFlags = readDriver(l.Name)
	saved.Rules = rulesOf(s.rules, saved.Addresses, l.Name)
	var err error
	if saved.Routes, err = routesOf(s.routes, l.Index); err != nil {
		return nil, err
	}
	saved.Qdiscs, err = qdiscsOf(s.qdiscs, l.Index)
	return saved, err
}

// attributesOf are a link's settings, by attribute number.
func attributesOf(m []byte) map[uint16][]byte {
	all := map[uint16][]byte{}
	for _, kind := range linkAttributes {
		if v := attributeOf(m, unix.SizeofIfInfomsg, kind); v != nil {
			all[kind] = v
		}
	}
	if mode := ipoibMode(attributeOf(m, unix.SizeofIfInfomsg, unix.IFLA_LINKINFO)); mode != nil {
		all[unix.IFLA_LINKINFO] = mode
	}
	return all
}

// bootTime is CLOCK_BOOTTIME in nanoseconds: it counts on while the machine sleeps.
func bootTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it cannot fail for this clock
	return ts.Nano()
}

func since(readAt int64) time.Duration { return time.Duration(bootTime() - readAt) }
