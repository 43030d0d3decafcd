package link

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nlaTypeMask takes NLA_F_NESTED and NLA_F_NET_BYTEORDER off a type (linux/netlink.h).
const nlaTypeMask = 0x3fff

// State reads the links, addresses and routes of the namespace.
func (c *Conn) State() (State, error) {
	links, err := c.Links()
	if err != nil {
		return State{}, err
	}
	addrs, err := c.Addrs()
	if err != nil {
		return State{}, err
	}
	routes, err := c.Routes()
	return State{Links: links, Addrs: addrs, Routes: routes}, err
}

// Links reads all links, in the order of their indices.
func (c *Conn) Links() ([]Link, error) {
	links, _, err := c.LinkMessages()
	return links, err
}

// LinkMessages is Links with the RTM_NEWLINK message of each link, as it is
// without statistics.
func (c *Conn) LinkMessages() ([]Link, [][]byte, error) {
	// rtnetlink.h: RTEXT_FILTER_SKIP_STATS; most of a message is statistics.
	skipStats := nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(1<<3))
	msgs, err := c.Dump(unix.RTM_GETLINK, unix.AF_UNSPEC, skipStats)
	if err != nil {
		return nil, nil, fmt.Errorf("listing links: %w", err)
	}
	slices.SortFunc(msgs, func(a, b []byte) int { return linkIndex(a) - linkIndex(b) })
	links := make([]Link, 0, len(msgs))
	for _, m := range msgs {
		l, err := ParseLink(m)
		if err != nil {
			return nil, nil, err
		}
		c.sysfs.addDevice(&l)
		links = append(links, l)
	}
	return links, msgs, nil
}

// linkIndex is the ifi_index of a struct ifinfomsg.
func linkIndex(msg []byte) int {
	if len(msg) < unix.SizeofIfInfomsg {
		return 0
	}
	return int(binary.NativeEndian.Uint32(msg[4:]))
}

// Addrs reads the IPv4 and IPv6 addresses of all links, in the kernel's order.
func (c *Conn) Addrs() ([]Addr, error) {
	msgs, err := c.Dump(unix.RTM_GETADDR, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	addrs := make([]Addr, 0, len(msgs))
	for _, m := range msgs {
		a, err := parseAddr(m)
		if err != nil {
			return nil, err
		}
		if a.Prefix.IsValid() {
			addrs = append(addrs, a)
		}
	}
	return addrs, nil
}

// Routes reads the IPv4 and IPv6 routes of all tables.
func (c *Conn) Routes() ([]Route, error) {
	var routes []Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		msgs, err := c.Dump(unix.RTM_GETROUTE, family)
		if err != nil {
			return nil, fmt.Errorf("listing routes: %w", err)
		}
		for _, m := range msgs {
			r, err := ParseRoute(m)
			if err != nil {
				return nil, err
			}
			routes = append(routes, r)
		}
	}
	return routes, nil
}

// ParseLink parses an RTM_NEWLINK message without its netlink header. What
// only sysfs knows, the port, stays 0.
func ParseLink(msg []byte) (Link, error) {
	attrs, err := parseAttrs(msg, unix.SizeofIfInfomsg)
	if err != nil {
		return Link{}, fmt.Errorf("parsing a link: %w", err)
	}
	info := nl.DeserializeIfInfomsg(msg)
	l := Link{Index: int(info.Index), Flags: info.Flags, Type: info.Type}
	lowerElsewhere := false
	for _, a := range attrs {
		switch a.Attr.Type & nlaTypeMask {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_PROP_LIST:
			l.AltNames, err = parseAltNames(a.Value)
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(a.Value)
		case unix.IFLA_ADDRESS:
			l.MAC = net.HardwareAddr(a.Value).String()
		case unix.IFLA_PERM_ADDRESS:
			l.PermanentMAC = net.HardwareAddr(a.Value).String()
		case unix.IFLA_MTU:
			l.MTU = number(a.Value)
		case unix.IFLA_OPERSTATE:
			l.OperState = operState(a.Value)
		case unix.IFLA_LINKINFO:
			l.Kind, l.PortKind, err = parseKinds(a.Value)
		case unix.IFLA_MASTER:
			l.Master = number(a.Value)
		case unix.IFLA_LINK:
			l.Lower = number(a.Value)
			l.Peer = l.Lower
		case unix.IFLA_LINK_NETNSID:
			lowerElsewhere = true
		case unix.IFLA_PARENT_DEV_NAME:
			l.ParentDev = unix.ByteSliceToString(a.Value)
		case unix.IFLA_PARENT_DEV_BUS_NAME:
			l.ParentBus = unix.ByteSliceToString(a.Value)
		}
		if err != nil {
			return Link{}, fmt.Errorf("parsing link %q: %w", l.Name, err)
		}
	}
	if lowerElsewhere || l.Lower == l.Index {
		l.Lower = 0
	}
	if l.ParentBus == "" { // a parent of no bus is a class device
		l.ParentDev = ""
	}
	return l, nil
}

func parseAltNames(b []byte) ([]string, error) {
	attrs, err := splitAttrs(b)
	var names []string
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_ALT_IFNAME {
			names = append(names, unix.ByteSliceToString(a.Value))
		}
	}
	return names, err
}

func parseKinds(b []byte) (kind, portKind string, err error) {
	attrs, err := splitAttrs(b)
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFLA_INFO_KIND:
			kind = unix.ByteSliceToString(a.Value)
		case unix.IFLA_INFO_SLAVE_KIND:
			portKind = unix.ByteSliceToString(a.Value)
		}
	}
	return kind, portKind, err
}

// operState is IF_OPER_* of linux/if.h in sysfs' words
// (operstates of net/core/net-sysfs.c).
func operState(b []byte) string {
	words := []string{"unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"}
	if len(b) != 1 || int(b[0]) >= len(words) {
		return "unknown"
	}
	return words[b[0]]
}

// parseAddr parses an RTM_NEWADDR message. IFA_LOCAL is the link's own address;
// IFA_ADDRESS is the peer's on a point-to-point link, and else the same.
func parseAddr(msg []byte) (Addr, error) {
	attrs, err := parseAttrs(msg, unix.SizeofIfAddrmsg)
	if err != nil {
		return Addr{}, fmt.Errorf("parsing an address: %w", err)
	}
	info := nl.DeserializeIfAddrmsg(msg)
	a := Addr{Index: int(info.Index), Scope: info.Scope}
	var own, peer netip.Addr
	for _, attr := range attrs {
		switch attr.Attr.Type {
		case unix.IFA_LOCAL:
			own, _ = netip.AddrFromSlice(attr.Value)
		case unix.IFA_ADDRESS:
			peer, _ = netip.AddrFromSlice(attr.Value)
		}
	}
	if !own.IsValid() {
		own = peer
	}
	a.Prefix = netip.PrefixFrom(own, int(info.Prefixlen))
	return a, nil
}

// ParseRoute parses an RTM_NEWROUTE message. RTA_TABLE goes beyond the 255
// tables of the header.
func ParseRoute(msg []byte) (Route, error) {
	attrs, err := parseAttrs(msg, unix.SizeofRtMsg)
	if err != nil {
		return Route{}, fmt.Errorf("parsing a route: %w", err)
	}
	info := nl.DeserializeRtMsg(msg)
	r := Route{Family: int(info.Family), Table: int(info.Table), Type: int(info.Type)}
	for _, a := range attrs {
		switch a.Attr.Type & nlaTypeMask {
		case unix.RTA_DST:
			dst, _ := netip.AddrFromSlice(a.Value)
			r.Destination = netip.PrefixFrom(dst, int(info.Dst_len))
		case unix.RTA_TABLE:
			r.Table = number(a.Value)
		case unix.RTA_PRIORITY:
			r.Metric = number(a.Value)
		case unix.RTA_OIF:
			r.Out = append(r.Out, number(a.Value))
		case unix.RTA_MULTIPATH:
			r.Out = append(r.Out, nextHops(a.Value)...)
		}
	}
	slices.Sort(r.Out)
	r.Out = slices.Compact(r.Out)
	return r, nil
}

// nextHops are the interface indices of struct rtnexthop, one after another.
func nextHops(b []byte) []int {
	var out []int
	for len(b) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtNexthop || length > len(b) {
			break
		}
		out = append(out, number(b[4:8])) // rtnh_ifindex
		b = b[min((length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
	}
	return out
}

// parseAttrs parses the attributes after a header of the given size.
func parseAttrs(msg []byte, header int) ([]syscall.NetlinkRouteAttr, error) {
	if len(msg) < header {
		return nil, fmt.Errorf("%d bytes are no message", len(msg))
	}
	return splitAttrs(msg[header:])
}

// splitAttrs is nl.ParseRouteAttr for bytes that may end without the last
// attribute's padding, where that panics (v1.3.1). Likewise unix.ByteSliceToString is used here, since
// nl.BytesToString panics without a NUL.
func splitAttrs(b []byte) ([]syscall.NetlinkRouteAttr, error) {
	if odd := len(b) % unix.NLA_ALIGNTO; odd != 0 {
		b = append(slices.Clip(b), make([]byte, unix.NLA_ALIGNTO-odd)...)
	}
	return nl.ParseRouteAttr(b)
}

func number(b []byte) int {
	if len(b) != 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(b))
}
