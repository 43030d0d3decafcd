package netdev

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
	"podrail/internal/nstest"
)

// seedMessages are what the kernel says of a link with an address of each family,
// routes, a rule and a neighbour: a corpus of messages as they really are.
func seedMessages(f *testing.F) *snapshot {
	n := nstest.New(f)
	for _, line := range []string{
		"link add nic type veth peer name peer", "link set nic up", "link set peer up", "link property add dev nic altname alt",
		"addr add 10.1.1.1/24 brd + dev nic label nic:1 metric 7", "addr add 10.1.2.1 peer 10.1.2.2/32 dev nic valid_lft 100 preferred_lft 50",
		"addr add fd00::5/64 dev nic nodad", "route add 10.9.0.0/16 via 10.1.1.2 mtu 4000",
		"route add 10.8.0.0/16 table 2000 nexthop via 10.1.1.2 dev nic weight 2 nexthop via 10.1.1.3 dev nic onlink",
		"rule add from 10.1.1.1 iif nic lookup 7", "neigh add 10.1.1.9 lladdr 02:00:00:00:00:09 dev nic",
	} {
		n.Run(f, "ip", strings.Fields(line)...)
	}
	n.Run(f, "tc", "qdisc", "add", "dev", "nic", "root", "handle", "1:", "pfifo", "limit", "7")
	var s *snapshot
	n.Do(f, func() {
		own, err := openNamespace(ownNamespacePath)
		if err == nil {
			defer own.close()
			s, err = readSnapshot(own)
		}
		if err != nil {
			f.Fatal(err)
		}
	})
	return s
}

func addMessages(f *testing.F) {
	s := seedMessages(f)
	for _, dump := range [][][]byte{s.addresses, s.routes, s.rules, s.neighbours, s.qdiscs} {
		for _, m := range dump {
			f.Add(m)
		}
	}
	for _, m := range s.raw {
		f.Add(m)
	}
	// Next hops and attributes that are longer than what holds them, or of no length.
	f.Add(append(make([]byte, routeHeader), 12, 0, byte(unix.RTA_MULTIPATH), 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0))
	f.Add(append(make([]byte, routeHeader), 12, 0, byte(unix.RTA_MULTIPATH), 0, 0, 0, 0, 0, 1, 0, 0, 0))
	f.Add(append(make([]byte, addressHeader), 0xff, 0xff, byte(unix.IFA_LOCAL), 0, 1))
	f.Add([]byte{})
}

// FuzzMessages gives bytes, as a journal or a dump could have them, to all that
// reads or rewrites messages.
func FuzzMessages(f *testing.F) {
	addMessages(f)
	f.Fuzz(func(t *testing.T, m []byte) {
		for _, a := range attributes(m, unix.SizeofIfInfomsg) {
			if len(a.value) > len(m) {
				t.Fatalf("attribute %d has %d bytes of a message of %d", a.kind, len(a.value), len(m))
			}
		}
		attributesOf(m)
		link.ParseLink(m)
		link.ParseRoute(m)
		// parseEntry lets no shorter message pass, and the kernel sends none.
		if len(m) >= addressHeader {
			for _, out := range [][]byte{addressInside(m, 7, "nic", "eth0"), addressHome(m, 7, time.Hour)} {
				if out != nil && !bytes.Equal(out[4:8], []byte{7, 0, 0, 0}) {
					t.Fatalf("the address is of interface %v, want 7", out[4:8])
				}
			}
			sameAddress(m, m)
			inOrder([][]byte{m, m})
			addressesOf([][]byte{m}, 1)
		}
		if len(m) >= routeHeader {
			out := routeTo(m, 7)
			for _, index := range outInterfaces(out) {
				if index != 7 {
					t.Fatalf("a route that was rewritten for interface 7 has a next hop on %d", index)
				}
			}
			sameRoute(m, out)
			destination(m)
			byDependency([][]byte{m, out})
			routesOf([][]byte{m}, 1)
			rulesOf([][]byte{m}, [][]byte{m}, "nic")
			ruleTo(m, "nic", "eth0")
		}
		if len(m) >= neighbourHeader {
			neighbourTo(m, 7)
			neighboursOf([][]byte{m}, 1)
		}
		if len(m) >= qdiscHeader {
			qdiscTo(m, 7)
			qdiscsOf([][]byte{m}, 1)
		}
	})
}

// FuzzEntry reads journal files, and brings home what they say: for real, in a
// network namespace that has a NIC of that name. Whatever the file says, other
// NICs and the rest of the machine stay as they are.
func FuzzEntry(f *testing.F) {
	s := seedMessages(f)
	saved := &hookapi.Saved{
		Name: "nic", AltNames: []string{"alt"}, Index: 2, Flags: link.FlagUp, Attributes: map[uint16][]byte{unix.IFLA_MTU: {0xdc, 5, 0, 0}},
		Addresses: s.addresses, Routes: s.routes, Rules: s.rules, Neighbours: s.neighbours, Qdiscs: s.qdiscs,
		Sysctls: map[string]string{"ipv4/conf/arp_ignore": "2", "ipv6/conf/accept_dad": "1"},
	}
	entry := hookapi.Entry{
		Version: hookapi.JournalVersion, Phase: hookapi.Attached, Identity: "ifindex/2", InsideIndex: 2, InsideName: "nic", Saved: saved,
		Home: hookapi.Namespace{Inode: 1}, Owner: hookapi.Namespace{Inode: 2},
	}
	add := func(change func(*hookapi.Entry)) {
		e, s := entry, *saved
		e.Saved = &s
		change(&e)
		data, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	add(func(*hookapi.Entry) {})
	add(func(e *hookapi.Entry) { e.Saved = nil; e.RDMA = "mlx5_0" })
	add(func(e *hookapi.Entry) { e.Saved.Name = "../../../etc" })
	add(func(e *hookapi.Entry) { e.Saved.Sysctls = map[string]string{"../../kernel/core_pattern": "|/bin/sh"} })
	add(func(e *hookapi.Entry) { e.Saved.Sysctls = map[string]string{"ipv4/conf/..": "1", "": "1"} })
	add(func(e *hookapi.Entry) { e.Saved.Addresses = [][]byte{{1}} })
	add(func(e *hookapi.Entry) { e.Pin = &hookapi.Pin{Path: "/etc/passwd", MountNamespace: 4026531841} })
	add(func(e *hookapi.Entry) { e.Identity, e.Saved.Index = "ifindex/1", 1 })
	add(func(e *hookapi.Entry) {
		e.Saved.Attributes = map[uint16][]byte{unix.IFLA_ADDRESS: nil, unix.IFLA_MTU: {1}}
	})
	add(func(e *hookapi.Entry) { e.Saved.AltNames = []string{"", "lo", strings.Repeat("x", 200), "a\x00b"} })
	add(func(e *hookapi.Entry) { e.Saved.ReadAt = -1 << 63 })
	f.Add([]byte(`{"version":1,"identity":"x","home":{"inode":1},"owner":{"inode":1},"saved":{}}`))
	f.Add([]byte(`{"version":1`))
	f.Add([]byte(`[]`))

	n := nstest.New(f)
	n.Run(f, "ip", "link", "add", "nic", "type", "veth", "peer", "name", "peer")
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseEntry(data)
		if err != nil {
			return
		}
		name := entryName(e)
		if name != filepath.Base(name) || !strings.HasSuffix(name, entrySuffix) {
			t.Fatalf("an entry would be the file %q", name)
		}
		n.Do(t, func() {
			own, err := openNamespace(ownNamespacePath)
			if err != nil {
				t.Fatal(err)
			}
			defer own.close()
			// A pin is refused before, unless it is in its place; here there is none.
			e.Home, e.Owner, e.Pin, e.Containers = own.id, hookapi.Namespace{Inode: 1, Cookie: 1}, nil, nil
			bringHomeWithin(t, e, own)
		})
	})
}

// bringHomeWithin is bringHome with a journal that is gone afterwards. What it
// cannot do it says; it must not panic.
func bringHomeWithin(t *testing.T, e *hookapi.Entry, own *namespace) {
	if e.Saved != nil && !virtualEntry(e) {
		e.Identity = "ifindex/2" // a physical one would be waited for
	}
	e.RDMA = ""
	j, err := openJournal(t.TempDir(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	s := &session{journal: j, own: own}
	_ = s.bringHome(e)
}

// FuzzMounts reads tables of mounts, in which a container may choose paths.
func FuzzMounts(f *testing.F) {
	f.Add([]byte(`210 198 0:4 net:[4026532546] /run/netns/a\040b rw - nsfs nsfs rw`))
	f.Add([]byte("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n"))
	f.Add([]byte(`1 2 3:4 net:[1] \ rw`))
	f.Add([]byte(`1 2 3:4 net:[1] \777\0 rw`))
	f.Add([]byte("1 2 3:4 net:["))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, path := range parseMounts(bytes.NewReader(data), "/root") {
			if !strings.HasPrefix(path, "/root") {
				t.Fatalf("path %q is not below the root", path)
			}
		}
	})
}
