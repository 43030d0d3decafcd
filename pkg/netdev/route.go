package netdev

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// A route is an RTM_NEWROUTE message: struct rtmsg (linux/rtnetlink.h) with
// family, destination and source length, tos, table, protocol, scope and type a
// byte each, then the flags.

const (
	routeHeader   = unix.SizeofRtMsg
	routeTable    = 4
	routeProtocol = 5
	routeScope    = 6
	routeFlags    = 8
	rtaNHID       = 30 // RTA_NH_ID
	rtaExpires    = 23 // RTA_EXPIRES
	nextHopSize   = 8  // struct rtnexthop
)

// routesOf are a link's routes in all tables, save what the kernel makes by
// itself in the local table, cached ones, and IPv6 multicast. A route that
// leaves with the link and cannot be replayed is an error that names it.
func routesOf(dump [][]byte, index int) ([][]byte, error) {
	var own [][]byte
	for _, m := range dump {
		out := outInterfaces(m)
		if !slices.Contains(out, index) || automatic(m) {
			continue
		}
		if id := uint32Of(m, routeHeader, rtaNHID); id != 0 {
			return nil, fmt.Errorf("its route %s uses nexthop object %d, which the kernel would delete with the move: remove that route first", destination(m), id)
		}
		if slices.ContainsFunc(out, func(i int) bool { return i != index }) {
			return nil, fmt.Errorf("its route %s also goes through another interface, which would lose it: remove that route first", destination(m))
		}
		own = append(own, m)
	}
	return own, nil
}

// automatic: the kernel makes and removes these with addresses and link state.
func automatic(m []byte) bool {
	const cloned = 0x200 // RTM_F_CLONED
	kernel := m[routeProtocol] == unix.RTPROT_KERNEL
	return kernel && tableOf(m) == unix.RT_TABLE_LOCAL ||
		binary.NativeEndian.Uint32(m[routeFlags:])&cloned != 0 ||
		m[routeProtocol] == unix.RTPROT_REDIRECT
}

func tableOf(m []byte) uint32 {
	if t := uint32Of(m, routeHeader, unix.RTA_TABLE); t != 0 {
		return t
	}
	return uint32(m[routeTable])
}

// outInterfaces are the interfaces that a route's next hops use.
func outInterfaces(m []byte) []int {
	var out []int
	if i := uint32Of(m, routeHeader, unix.RTA_OIF); i != 0 {
		out = append(out, int(i))
	}
	hops := attributeOf(m, routeHeader, unix.RTA_MULTIPATH)
	for len(hops) >= nextHopSize {
		out = append(out, int(binary.NativeEndian.Uint32(hops[4:])))
		size := int(binary.NativeEndian.Uint16(hops))
		if size < nextHopSize {
			break
		}
		hops = hops[min(align(size), len(hops)):]
	}
	return out
}

func destination(m []byte) string {
	if m[1] == 0 {
		return "default"
	}
	ip, _ := netip.AddrFromSlice(attributeOf(m, routeHeader, unix.RTA_DST))
	return netip.PrefixFrom(ip, int(m[1])).String()
}

// wantedInside says whether the container gets a route of the NIC: all but what
// came by router advertisement. What the kernel makes from the addresses is there
// already, unless these are "noprefixroute": NetworkManager adds such an address
// and its route itself, in the kernel's name.
func wantedInside(m []byte) bool {
	return m[routeProtocol] != unix.RTPROT_RA
}

// routeTo is a route as it is replayed on a link: of the flags only what can be
// set, and no ages.
func routeTo(m []byte, index int) []byte {
	out := rewrite(m, routeHeader, func(a *attribute) bool {
		switch a.kind {
		case unix.RTA_CACHEINFO:
			return false
		case unix.RTA_OIF:
			*a = number(unix.RTA_OIF, uint32(index))
		case unix.RTA_MULTIPATH:
			a.value = nextHopsTo(a.value, index)
		}
		return true
	})
	flags := binary.NativeEndian.Uint32(out[routeFlags:]) & unix.RTNH_F_ONLINK
	binary.NativeEndian.PutUint32(out[routeFlags:], flags)
	// The kernel reports the lifetime of an IPv6 route in RTA_CACHEINFO and
	// takes it in RTA_EXPIRES (net/ipv6/route.c).
	if life := attributeOf(m, routeHeader, unix.RTA_CACHEINFO); out[0] == unix.AF_INET6 && len(life) >= 12 {
		if ticks := int32(binary.NativeEndian.Uint32(life[8:])); ticks > 0 {
			out = appendAttribute(out, number(rtaExpires, uint32(ticks)/userHz))
		}
	}
	return out
}

const userHz = 100 // USER_HZ of every architecture that has NVIDIA GPUs

func nextHopsTo(hops []byte, index int) []byte {
	out := append([]byte(nil), hops...)
	for rest := out; len(rest) >= nextHopSize; {
		rest[2] &= unix.RTNH_F_ONLINK
		binary.NativeEndian.PutUint32(rest[4:], uint32(index))
		size := int(binary.NativeEndian.Uint16(rest))
		if size < nextHopSize {
			break
		}
		rest = rest[min(align(size), len(rest)):]
	}
	return out
}

// sameRoute says whether two messages are one route of one link.
func sameRoute(a, b []byte) bool {
	return bytes.Equal(settingsOfRoute(a), settingsOfRoute(b))
}

func settingsOfRoute(m []byte) []byte {
	out := append([]byte(nil), m[:routeFlags]...)
	replayed := routeTo(m, 0)
	all := attributes(replayed, routeHeader)
	slices.SortFunc(all, func(a, b attribute) int { return int(a.kind) - int(b.kind) })
	for _, a := range all {
		if a.kind != rtaExpires {
			out = appendAttribute(out, a)
		}
	}
	return append(out, replayed[routeFlags])
}

// byDependency orders routes so that those without a gateway come first: the
// kernel takes a gateway only when it is reachable already.
func byDependency(routes [][]byte) [][]byte {
	sorted := slices.Clone(routes)
	slices.SortStableFunc(sorted, func(a, b []byte) int { return rank(a) - rank(b) })
	return sorted
}

func rank(m []byte) int {
	if attributeOf(m, routeHeader, unix.RTA_GATEWAY) == nil && attributeOf(m, routeHeader, unix.RTA_MULTIPATH) == nil {
		return 0
	}
	return 1
}
