package netdev

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// A rule is an RTM_NEWRULE message: struct fib_rule_hdr (linux/fib_rules.h) with
// family, destination and source length, tos, table, two reserved bytes and
// action, then the flags. Rules belong to no link: the host keeps them while the
// NIC is away.

const (
	ruleHeader     = unix.SizeofRtMsg
	ruleFlags      = 8
	fraDst         = 1 // FRA_DST
	fraSrc         = 2 // FRA_SRC
	fraIIFName     = 3 // FRA_IIFNAME
	fraOIFName     = 17
	fibRuleInvert  = 2
	ruleDstLength  = 1
	ruleSrcLength  = 2
	maxRulePerLink = 4096
)

// rulesOf are the rules that name one of the link's addresses, or the link itself.
func rulesOf(dump, addresses [][]byte, name string) [][]byte {
	var own [][]byte
	for _, m := range dump {
		named := cstring(attributeOf(m, ruleHeader, fraIIFName)) == name || cstring(attributeOf(m, ruleHeader, fraOIFName)) == name
		if named || namesAddress(m, addresses) {
			own = append(own, m)
		}
	}
	return own[:min(len(own), maxRulePerLink)]
}

func namesAddress(m []byte, addresses [][]byte) bool {
	for _, side := range []struct {
		kind   uint16
		length byte
	}{{fraSrc, m[ruleSrcLength]}, {fraDst, m[ruleDstLength]}} {
		ip, ok := netip.AddrFromSlice(attributeOf(m, ruleHeader, side.kind))
		if !ok || int(side.length) != ip.BitLen() {
			continue
		}
		if slices.ContainsFunc(addresses, func(a []byte) bool { return prefixOf(a).Addr() == ip }) {
			return true
		}
	}
	return false
}

// ruleTo is a rule as it is replayed, for a link that was called one name and
// is called another.
func ruleTo(m []byte, was, is string) []byte {
	out := rewrite(m, ruleHeader, func(a *attribute) bool {
		if (a.kind == fraIIFName || a.kind == fraOIFName) && cstring(a.value) == was {
			*a = text(a.kind, is)
		}
		return true
	})
	flags := binary.NativeEndian.Uint32(out[ruleFlags:]) & fibRuleInvert
	binary.NativeEndian.PutUint32(out[ruleFlags:], flags)
	return out
}
