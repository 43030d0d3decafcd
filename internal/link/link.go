// Package link says what a network interface is: its identity, whatever it is
// called now; whether the host hangs on it; which RDMA device nodes belong to
// it. The generator asks it about a host or a host tree, the hook about the
// NIC that it is about to move.
//
//	c, err := link.Open()
//	if err != nil { ... }
//	defer c.Close()
//	links, err := c.Links()
//	for _, l := range links {
//		fmt.Println(l.Name, l.Identity())
//	}
package link

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Link is one network interface, as RTM_NEWLINK describes it. It marshals to
// JSON so that a host tree can hold it.
type Link struct {
	Index    int      `json:"ifindex"`
	Name     string   `json:"name"`
	AltNames []string `json:"altNames,omitempty"`
	Alias    string   `json:"alias,omitempty"`
	// MAC is the address in use, PermanentMAC the one in the hardware
	// (IFLA_PERM_ADDRESS, Linux 5.6).
	MAC          string `json:"mac,omitempty"`
	PermanentMAC string `json:"permanentMAC,omitempty"`
	MTU          int    `json:"mtu"`
	// Flags are IFF_* of linux/if.h.
	Flags uint32 `json:"flags"`
	// OperState is RFC 2863's, in sysfs' words: "up", "down", "lowerlayerdown" ...
	OperState string `json:"operState,omitempty"`
	// Type is ARPHRD_* of linux/if_arp.h: 1 Ethernet, 32 InfiniBand, 772 loopback.
	Type uint16 `json:"type"`
	// Kind is IFLA_INFO_KIND: "veth", "bond"; empty for a driver's own NIC.
	Kind string `json:"kind,omitempty"`
	// PortKind is IFLA_INFO_SLAVE_KIND: what kind of master this is a port of.
	PortKind string `json:"portKind,omitempty"`
	// Master is the interface index of the bridge, bond or VRF above.
	Master int `json:"master,omitempty"`
	// Lower is the interface index of the link beneath (IFLA_LINK), when that is
	// in the same network namespace.
	Lower int `json:"lower,omitempty"`
	// Peer is IFLA_LINK in whatever network namespace: the other end of a veth,
	// the link beneath a macvlan.
	Peer int `json:"-"`
	// ParentBus and ParentDev name the device beneath (IFLA_PARENT_DEV_*, Linux
	// 5.14): "pci" and "0000:91:00.0". Empty for a virtual link.
	ParentBus string `json:"parentBus,omitempty"`
	ParentDev string `json:"parentDev,omitempty"`
	// Port is dev_port of sysfs: which port of the device this is, from 0.
	Port int `json:"port,omitempty"`
}

// Flags of linux/if.h.
const (
	FlagUp          = 1 << 0
	FlagLoopback    = 1 << 3
	FlagPointopoint = 1 << 4
	FlagNoARP       = 1 << 7
	FlagPromisc     = 1 << 8
	FlagAllMulti    = 1 << 9
	FlagMaster      = 1 << 10
	FlagSlave       = 1 << 11
)

// Identity tells a NIC from all others of its network namespace for as long as
// the machine runs, whatever it is renamed to:
//
//	pci/0000:91:00.0      the device beneath: its bus and name
//	pci/0000:91:00.0/1    and its port, where that is not 0
//	mac/06:c4:a0:25:7e:01 the permanent MAC, where no device is known
//	ifindex/7             a virtual link
func (l Link) Identity() string {
	switch {
	case l.ParentBus != "" && l.ParentDev != "" && l.Port != 0:
		return l.ParentBus + "/" + l.ParentDev + "/" + strconv.Itoa(l.Port)
	case l.ParentBus != "" && l.ParentDev != "":
		return l.ParentBus + "/" + l.ParentDev
	case l.PermanentMAC != "" && l.Kind == "":
		return "mac/" + l.PermanentMAC
	default:
		return "ifindex/" + strconv.Itoa(l.Index)
	}
}

// Virtual says whether the link dies with its network namespace, where a
// driver's own NIC would go to the initial one: the kernel destroys what has
// rtnl_link_ops (default_device_exit_net in net/core/dev.c), and those have a kind.
// IPoIB has a kind, too, and is returned (netns_refund).
func (l Link) Virtual() bool {
	return l.Kind != "" && l.Kind != "ipoib"
}

// Addr is an address of a link.
type Addr struct {
	Index  int          `json:"ifindex"`
	Prefix netip.Prefix `json:"prefix"`
	// Scope is RT_SCOPE_*: 0 global, 253 link, 254 host.
	Scope uint8 `json:"scope,omitempty"`
}

// Route is a route, as far as the default-route rule needs it.
type Route struct {
	// Family is AF_INET (2) or AF_INET6 (10).
	Family int `json:"family"`
	// Table is the routing table; 254 is main.
	Table int `json:"table"`
	// Type is RTN_*: 1 is unicast.
	Type int `json:"type"`
	// Destination is the zero Prefix for a default route.
	Destination netip.Prefix `json:"destination,omitzero"`
	// Metric is RTA_PRIORITY.
	Metric int `json:"metric,omitempty"`
	// Out are the interface indices that the route's next hops use.
	Out []int `json:"out,omitempty"`
}

// State is what a network namespace has, for the rules of this package. A host
// tree holds it as net.json.
type State struct {
	Links  []Link  `json:"links"`
	Addrs  []Addr  `json:"addresses"`
	Routes []Route `json:"routes"`
}

const (
	tableMain   = 254
	typeUnicast = 1
)

// Uplinks tells which links the host hangs on, by interface index, with the
// reason: the links that carry a default route of the main table (the lowest
// metric of each family counts, and all next hops of a multipath route), and
// everything stacked beneath or on top of those.
//
// Source of the rule: DraNet's experience (dranet 52aa19a, 6ca8049: metrics,
// point-to-point routes without a gateway, multipath, other tables).
func Uplinks(links []Link, routes []Route) map[int]string {
	reasons := map[int]string{}
	lowest := map[int]int{}
	for _, r := range routes {
		if !isDefault(r) {
			continue
		}
		if metric, ok := lowest[r.Family]; !ok || r.Metric < metric {
			lowest[r.Family] = r.Metric
		}
	}
	for _, r := range routes {
		if isDefault(r) && r.Metric == lowest[r.Family] {
			for _, index := range r.Out {
				reasons[index] = "default route"
			}
		}
	}
	for _, index := range slices.Sorted(maps.Keys(reasons)) {
		markStack(links, index, reasons, beneath)
		markStack(links, index, reasons, onTop)
	}
	return reasons
}

// markStack marks what is stacked beneath or on top of a link, link by link.
func markStack(links []Link, index int, reasons map[int]string, next func(of, l Link) string) {
	i := slices.IndexFunc(links, func(l Link) bool { return l.Index == index })
	if i < 0 {
		return
	}
	for _, l := range links {
		reason := next(links[i], l)
		if _, done := reasons[l.Index]; done || reason == "" {
			continue
		}
		reasons[l.Index] = reason
		markStack(links, l.Index, reasons, next)
	}
}

// beneath: l is the lower link of a VLAN or macvlan, or the port of a bond or bridge.
func beneath(of, l Link) string {
	if l.Index == of.lower() || l.Master == of.Index {
		return "beneath " + of.Name
	}
	return ""
}

// onTop is the other way round.
func onTop(of, l Link) string {
	if of.Index == l.lower() || of.Master == l.Index {
		return "on top of " + of.Name
	}
	return ""
}

// lower is the link that this one is stacked on; the peer of a veth is none.
func (l Link) lower() int {
	if l.Kind == "veth" || l.Lower == 0 {
		return -1
	}
	return l.Lower
}

func isDefault(r Route) bool {
	zero := !r.Destination.IsValid() || r.Destination.Bits() == 0
	return zero && r.Table == tableMain && r.Type == typeUnicast
}

// PCIAddress is the PCI function in an identity, or "".
func PCIAddress(identity string) string {
	rest, ok := strings.CutPrefix(identity, "pci/")
	if !ok {
		return ""
	}
	address, _, _ := strings.Cut(rest, "/")
	return address
}
