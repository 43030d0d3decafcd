package netdev

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
)

// The messages that a NetworkConfig stands for. It has been validated: what does
// not parse here cannot come.

// newAddress is an RTM_NEWADDR message for an address in CIDR notation.
func newAddress(cidr string, index int) []byte {
	p := netip.MustParsePrefix(cidr)
	m := make([]byte, addressHeader)
	m[0], m[1] = family(p.Addr()), byte(p.Bits())
	flags := uint32(0)
	if p.Addr().Is6() {
		flags = unix.IFA_F_NODAD // see addressInside
	}
	m = appendAttribute(m, attribute{kind: unix.IFA_LOCAL, value: p.Addr().AsSlice()})
	m = appendAttribute(m, attribute{kind: unix.IFA_ADDRESS, value: p.Addr().AsSlice()})
	if p.Addr().Is4() && p.Bits() < 31 {
		m = appendAttribute(m, attribute{kind: unix.IFA_BROADCAST, value: broadcast(p)})
	}
	return addressTo(appendAttribute(m, number(unix.IFA_FLAGS, flags)), index, flags)
}

func broadcast(p netip.Prefix) []byte {
	a := p.Addr().As4()
	hosts := uint32(1)<<(32-p.Bits()) - 1
	return binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(a[:])|hosts)
}

// newRoute is an RTM_NEWROUTE message.
func newRoute(r hookapi.RouteConfig, index int) []byte {
	dst := netip.MustParsePrefix(r.Destination).Masked()
	m := make([]byte, routeHeader)
	m[0], m[1] = family(dst.Addr()), byte(dst.Bits())
	m[routeProtocol], m[routeScope], m[7] = unix.RTPROT_STATIC, r.Scope, unix.RTN_UNICAST
	if dst.Bits() > 0 {
		m = appendAttribute(m, attribute{kind: unix.RTA_DST, value: dst.Addr().AsSlice()})
	}
	for _, a := range []struct {
		kind  uint16
		value string
	}{{unix.RTA_GATEWAY, r.Gateway}, {unix.RTA_PREFSRC, r.Source}} {
		if a.value != "" {
			m = appendAttribute(m, attribute{kind: a.kind, value: netip.MustParseAddr(a.value).AsSlice()})
		}
	}
	m = appendAttribute(m, number(unix.RTA_OIF, uint32(index)))
	table := uint32(r.Table)
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	return inTable(m, table)
}

// inTable is a route in another table: RTA_TABLE goes beyond the header's byte.
func inTable(m []byte, table uint32) []byte {
	out := rewrite(m, routeHeader, func(a *attribute) bool { return a.kind != unix.RTA_TABLE })
	out[routeTable] = byte(table)
	if table > 255 {
		out[routeTable] = unix.RT_TABLE_UNSPEC
	}
	return appendAttribute(out, number(unix.RTA_TABLE, table))
}

// newRules are RTM_NEWRULE messages: one, or one for each family for a rule
// without addresses.
func newRules(r hookapi.RuleConfig) [][]byte {
	src, _ := netip.ParsePrefix(r.Source)
	dst, _ := netip.ParsePrefix(r.Destination)
	families := []byte{unix.AF_INET, unix.AF_INET6}
	for _, p := range []netip.Prefix{src, dst} {
		if p.IsValid() {
			families = []byte{family(p.Addr())}
		}
	}
	var all [][]byte
	for _, f := range families {
		m := make([]byte, ruleHeader)
		m[0], m[7] = f, 1 // FR_ACT_TO_TBL
		if src.IsValid() {
			m[ruleSrcLength] = byte(src.Bits())
			m = appendAttribute(m, attribute{kind: fraSrc, value: src.Masked().Addr().AsSlice()})
		}
		if dst.IsValid() {
			m[ruleDstLength] = byte(dst.Bits())
			m = appendAttribute(m, attribute{kind: fraDst, value: dst.Masked().Addr().AsSlice()})
		}
		if r.Priority != 0 {
			m = appendAttribute(m, number(fraPriority, uint32(r.Priority)))
		}
		table := uint32(r.Table)
		if table == 0 {
			table = unix.RT_TABLE_MAIN
		}
		all = append(all, appendAttribute(m, number(fraTable, table)))
	}
	return all
}

const (
	fraPriority = 6  // FRA_PRIORITY
	fraTable    = 15 // FRA_TABLE
)

// newNeighbour is an RTM_NEWNEIGH message.
func newNeighbour(n hookapi.NeighborConfig, index int) []byte {
	ip := netip.MustParseAddr(n.Destination)
	m := make([]byte, neighbourHeader)
	m[0] = family(ip)
	binary.NativeEndian.PutUint32(m[neighbourIfindex:], uint32(index))
	binary.NativeEndian.PutUint16(m[neighbourState:], unix.NUD_PERMANENT)
	m = appendAttribute(m, attribute{kind: unix.NDA_DST, value: ip.AsSlice()})
	return appendAttribute(m, attribute{kind: unix.NDA_LLADDR, value: parseMAC(n.HardwareAddr)})
}

// newVRF is an RTM_NEWLINK message for a VRF (IFLA_VRF_TABLE is 1).
func newVRF(name string, table uint32) []byte {
	info := appendAttribute(nil, text(unix.IFLA_INFO_KIND, "vrf"))
	info = appendAttribute(info, attribute{kind: unix.IFLA_INFO_DATA, flags: unix.NLA_F_NESTED, value: appendAttribute(nil, number(1, table))})
	return linkMessage(0, 0, 0, text(unix.IFLA_IFNAME, name), attribute{kind: unix.IFLA_LINKINFO, flags: unix.NLA_F_NESTED, value: info})
}

// vrfTable is a VRF's table in its RTM_NEWLINK message.
func vrfTable(m []byte) uint32 {
	info := attributeOf(m, unix.SizeofIfInfomsg, unix.IFLA_LINKINFO)
	return uint32Of(attributeOf(info, 0, unix.IFLA_INFO_DATA), 0, 1)
}

func family(ip netip.Addr) byte {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
