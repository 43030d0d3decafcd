package machine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"podrail/internal/nstest"
)

// Settle is how long a test waits for what happens on its own.
const Settle = 10 * time.Second

// NIC makes what a GPU machine has eight of: an interface with addresses, routes
// in the main and in a table of its own, a rule, an altname and a sysctl. It is a
// veth end, whose other end is in a network namespace called rail. The number i, 1
// to 9, is in its addresses.
func (m *Machine) NIC(t testing.TB, name string, i int) {
	t.Helper()
	m.Run(t, "sh", "-ec", `
		name=$1 i=$2
		test -e /run/netns/rail || ip netns add rail
		ip link add "$name" address "02:00:00:00:00:1$i" mtu 8896 type veth peer name "$name" mtu 8896 netns rail
		ip -n rail link set "$name" up
		ip link property add dev "$name" altname "enp145s${i}f0np0"
		echo 0 >"/proc/sys/net/ipv6/conf/$name/accept_dad" # which takes a second or two
		ip link set "$name" up
		echo 2 >"/proc/sys/net/ipv4/conf/$name/arp_ignore"
		ip addr add "192.168.$i.2/32" dev "$name"
		ip addr add "fd00:$i::2/64" dev "$name" nodad
		ip route add "192.168.$i.1" dev "$name" scope link
		ip route add "10.$i.0.0/16" via "192.168.$i.1" dev "$name"
		ip -6 route add "fd01:$i::/64" via "fd00:$i::1" dev "$name"
		ip route add "172.16.$i.0/24" dev "$name" table "10$i"
		ip rule add from "192.168.$i.2" table "10$i"
	`, "sh", name, strconv.Itoa(i))
	// The kernel gives the link-local address its last flags a moment later.
	nstest.Eventually(t, Settle, func() error {
		if out := m.Namespace.Run(t, "ip", "-6", "addr", "show", "dev", name); strings.Contains(out, "tentative") {
			return fmt.Errorf("address of %s is still tentative:\n%s", name, out)
		}
		return nil
	})
}

// CheckNIC says what of the NIC that NIC(t, name, i) made is not in a network
// namespace as a workload needs it.
func CheckNIC(t testing.TB, n *nstest.Namespace, name string, i int) {
	t.Helper()
	var links []struct {
		MTU       int      `json:"mtu"`
		Flags     []string `json:"flags"`
		Addresses []struct {
			Local  string `json:"local"`
			Prefix int    `json:"prefixlen"`
		} `json:"addr_info"`
	}
	n.JSON(t, &links, "addr", "show", "dev", name)
	if len(links) != 1 {
		t.Errorf("%s: %d links, want 1", name, len(links))
		return
	}
	l := links[0]
	if l.MTU != 8896 {
		t.Errorf("%s: MTU %d, want 8896", name, l.MTU)
	}
	if !slices.Contains(l.Flags, "UP") {
		t.Errorf("%s: flags %v, want UP", name, l.Flags)
	}
	var addresses []string
	for _, a := range l.Addresses {
		addresses = append(addresses, fmt.Sprintf("%s/%d", a.Local, a.Prefix))
	}
	contains(t, name+": addresses", addresses, fmt.Sprintf("192.168.%d.2/32", i), fmt.Sprintf("fd00:%d::2/64", i))

	var routes []string
	for _, family := range []string{"-4", "-6"} {
		var all []struct{ Dst, Gateway, Table string }
		n.JSON(t, &all, family, "route", "show", "table", "all", "dev", name)
		for _, r := range all {
			routes = append(routes, strings.Join(strings.Fields(r.Dst+" "+r.Gateway+" "+r.Table), " "))
		}
	}
	contains(t, name+": routes", routes,
		fmt.Sprintf("192.168.%d.1", i),
		fmt.Sprintf("10.%d.0.0/16 192.168.%d.1", i, i),
		fmt.Sprintf("fd01:%d::/64 fd00:%d::1", i, i),
		fmt.Sprintf("172.16.%d.0/24 10%d", i, i))
}

func contains(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s: %q is missing in %q", what, w, got)
		}
	}
}
