package netdev

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An address is an RTM_NEWADDR message: struct ifaddrmsg (linux/if_addr.h) with
// family, prefix length, flags and scope a byte each, then the interface index.

const (
	addressHeader  = unix.SizeofIfAddrmsg
	ifaProto       = 11 // IFA_PROTO, Linux 5.18; package unix has no name for it
	protoKernelLL  = 3  // IFAPROT_KERNEL_LL
	forever        = ^uint32(0)
	addressScope   = 3
	addressFlags   = 2
	addressIfindex = 4
)

// addressesOf are the addresses of a link that can be replayed: IPv6 privacy
// addresses are not, since the kernel makes new ones from their base address.
func addressesOf(dump [][]byte, index int) [][]byte {
	var own [][]byte
	for _, m := range dump {
		privacy := !isV4(m) && flagsOfAddress(m)&unix.IFA_F_TEMPORARY != 0
		if int(binary.NativeEndian.Uint32(m[addressIfindex:])) == index && !privacy {
			own = append(own, m)
		}
	}
	return own
}

// isV4: IFA_F_TEMPORARY and IFA_F_SECONDARY are one bit; in IPv4 it means the latter.
func isV4(m []byte) bool { return m[0] == unix.AF_INET }

func flagsOfAddress(m []byte) uint32 {
	if flags := attributeOf(m, addressHeader, unix.IFA_FLAGS); len(flags) == 4 {
		return binary.NativeEndian.Uint32(flags)
	}
	return uint32(m[addressFlags])
}

// prefixOf is the address itself (IFA_LOCAL of a point-to-point link, else
// IFA_ADDRESS) with its prefix length.
func prefixOf(m []byte) netip.Prefix {
	raw := attributeOf(m, addressHeader, unix.IFA_LOCAL)
	if raw == nil {
		raw = attributeOf(m, addressHeader, unix.IFA_ADDRESS)
	}
	ip, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(ip, int(m[1]))
}

// inOrder orders addresses for adding: the kernel lists IPv6 addresses of one
// scope newest first (ipv6_link_dev_addr), and prefers them in that order, so
// those are added from the last to the first.
func inOrder(addresses [][]byte) [][]byte {
	v6 := slices.Clone(addresses)
	slices.Reverse(v6)
	v6 = slices.DeleteFunc(v6, isV4)
	v4 := slices.DeleteFunc(slices.Clone(addresses), func(m []byte) bool { return !isV4(m) })
	return append(v4, v6...)
}

// madeByKernel says whether the kernel makes this address by itself when the
// link goes up: an IPv6 link-local one. Before Linux 5.18 nothing tells; then it
// is replayed like any other, and the kernel finds its own there already.
func madeByKernel(m []byte) bool {
	proto := attributeOf(m, addressHeader, ifaProto)
	return len(proto) == 1 && proto[0] == protoKernelLL
}

// addressInside is a saved address as the container gets it: permanent, since
// nobody renews a lease there, and without duplicate address detection, since
// the same machine had it a moment ago and a workload binds to it at once.
func addressInside(m []byte, index int, was, is string) []byte {
	flags := flagsOfAddress(m) &^ (unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_PERMANENT | unix.IFA_F_MANAGETEMPADDR)
	if !isV4(m) {
		flags |= unix.IFA_F_NODAD
	}
	out := rewrite(m, addressHeader, func(a *attribute) bool {
		switch a.kind {
		case unix.IFA_CACHEINFO, unix.IFA_FLAGS:
			return false
		case unix.IFA_LABEL:
			*a = text(unix.IFA_LABEL, relabel(cstring(a.value), was, is))
		}
		return true
	})
	return addressTo(appendAttribute(out, number(unix.IFA_FLAGS, flags)), index, flags)
}

// addressHome is a saved address as the NIC gets it back, with what is left of
// its lifetimes. It is nil when nothing is left.
func addressHome(m []byte, index int, away time.Duration) []byte {
	flags := flagsOfAddress(m) &^ (unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED)
	expired := false
	out := rewrite(m, addressHeader, func(a *attribute) bool {
		switch {
		case a.kind == unix.IFA_FLAGS:
			return false
		case a.kind == unix.IFA_CACHEINFO && len(a.value) >= 8:
			life := append([]byte(nil), a.value...)
			preferred, valid := binary.NativeEndian.Uint32(life), binary.NativeEndian.Uint32(life[4:])
			expired = valid != forever && uint32(away.Seconds()) >= valid
			binary.NativeEndian.PutUint32(life, left(preferred, away))
			binary.NativeEndian.PutUint32(life[4:], left(valid, away))
			a.value = life
		}
		return true
	})
	if expired {
		return nil
	}
	return addressTo(appendAttribute(out, number(unix.IFA_FLAGS, flags)), index, flags)
}

func addressTo(m []byte, index int, flags uint32) []byte {
	m[addressFlags] = byte(flags)
	binary.NativeEndian.PutUint32(m[addressIfindex:], uint32(index))
	return m
}

func left(life uint32, away time.Duration) uint32 {
	if life == forever {
		return forever
	}
	return life - min(life, uint32(away.Seconds()))
}

// relabel keeps an IPv4 label valid when the link's name changes: the kernel
// wants the name itself, or the name and a suffix ("eth0:1").
func relabel(label, was, is string) string {
	suffix, ok := strings.CutPrefix(label, was)
	if !ok || len(is)+len(suffix) > unix.IFNAMSIZ-1 {
		return is
	}
	return is + suffix
}

// sameAddress says whether two messages are one address of one link with the
// same settings, lifetimes aside.
func sameAddress(a, b []byte) bool {
	return a[0] == b[0] && a[1] == b[1] && a[addressScope] == b[addressScope] &&
		bytes.Equal(settingsOfAddress(a), settingsOfAddress(b))
}

func settingsOfAddress(m []byte) []byte {
	var out []byte
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS, unix.IFA_BROADCAST, unix.IFA_LABEL, unix.IFA_RT_PRIORITY, ifaProto} {
		if v := attributeOf(m, addressHeader, kind); v != nil {
			out = appendAttribute(out, attribute{kind: kind, value: v})
		}
	}
	const volatile = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_SECONDARY | unix.IFA_F_PERMANENT
	return appendAttribute(out, number(unix.IFA_FLAGS, flagsOfAddress(m)&^volatile))
}

// cstring is a NUL-terminated string.
func cstring(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
