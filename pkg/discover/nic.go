package discover

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"podrail/internal/link"
)

// readNICs reads the links, and attaches the RDMA devices to them.
func (h *Host) readNICs(root *Root, tree *pciTree, net network) {
	uplinks := link.Uplinks(net.Links, net.Routes)
	if net.unknown != nil {
		h.problem("netlink", net.unknown)
		for _, l := range net.Links {
			uplinks[l.Index] = "routes are unknown"
		}
	}
	var nics []*candidate
	for _, l := range net.Links {
		if l.Flags&link.FlagLoopback != 0 {
			continue
		}
		c := newCandidate(root, tree, l)
		c.nic.DefaultRoute = uplinks[l.Index]
		for _, a := range net.Addrs {
			if a.Index == l.Index {
				c.nic.Addresses = append(c.nic.Addresses, a.Prefix)
			}
		}
		if l.ParentDev != "" && c.dir == "" {
			h.problem(l.Name, fmt.Errorf("no device %s on bus %s in sysfs", l.ParentDev, l.ParentBus))
		}
		nics = append(nics, c)
	}
	nics = h.attachRDMA(root, tree, nics)
	for _, c := range nics {
		h.NICs = append(h.NICs, c.nic)
	}
	slices.SortFunc(h.NICs, func(a, b NIC) int { return compareNatural(a.Name, b.Name) })
}

// candidate is a NIC to which RDMA devices may be attached.
type candidate struct {
	nic  NIC
	link link.Link
	// dir is the sysfs directory of the device beneath, "" if there is none.
	dir string
}

func newCandidate(root *Root, tree *pciTree, l link.Link) *candidate {
	c := &candidate{link: l}
	c.nic = NIC{
		Name:      l.Name,
		Identity:  l.Identity(),
		Interface: l.Name,
		Index:     l.Index,
		Kind:      Virtual,
		LinkKind:  l.Kind,
		MAC:       l.MAC,
		MTU:       l.MTU,
		State:     l.OperState,
		NUMANode:  -1,
	}
	if l.ParentDev == "" {
		return c
	}
	c.nic.Kind = PF
	dir, err := root.Resolve(path.Join("/sys/bus", l.ParentBus, "devices", l.ParentDev))
	if err == nil {
		c.dir = dir
		c.nic.describeDevice(root, tree, dir)
	}
	return c
}

// describeDevice adds what is known of the device beneath, and of the PCI
// function that it is or is on.
func (n *NIC) describeDevice(root *Root, tree *pciTree, dir string) {
	n.Driver = readEvent(root, dir)["DRIVER"]
	n.PCIAddress = pciFunction(dir)
	if n.PCIAddress == "" {
		return
	}
	pci := tree.get(n.PCIAddress)
	n.Vendor, n.Device = pci.Vendor, pci.Device
	n.NUMANode, n.PCIRoot, n.PCIPath = pci.NUMANode, pci.Root, pci.chain()
	if pf, err := root.Readlink(path.Join("/sys/bus/pci/devices", n.PCIAddress, "physfn")); err == nil {
		n.Kind, n.PF = VF, path.Base(pf)
	}
}

// sysfsLinks reads the links that sysfs shows; it does not know their
// permanent MAC, and of their kind only what udev is told.
func sysfsLinks(root *Root) []link.Link {
	names, _ := root.ReadDir("/sys/class/net")
	var links []link.Link
	for _, name := range names {
		dir := path.Join("/sys/class/net", name)
		index := readNumber(root, path.Join(dir, "ifindex"), 0)
		if index == 0 { // bonding_masters, which is a file, or a link that just went
			continue
		}
		l := link.Link{
			Index:     index,
			Name:      name,
			MAC:       readWord(root, path.Join(dir, "address")),
			MTU:       readNumber(root, path.Join(dir, "mtu"), 0),
			Flags:     uint32(readNumber(root, path.Join(dir, "flags"), 0)),
			OperState: readWord(root, path.Join(dir, "operstate")),
			Type:      uint16(readNumber(root, path.Join(dir, "type"), 0)),
			Port:      readNumber(root, path.Join(dir, "dev_port"), 0),
		}
		l.ParentBus, l.ParentDev = parentDevice(root, path.Join(dir, "device"))
		if l.ParentDev == "" {
			l.Kind, l.Port = readEvent(root, dir)["DEVTYPE"], 0
		}
		links = append(links, l)
	}
	stackLinks(root, links)
	slices.SortFunc(links, func(a, b link.Link) int { return a.Index - b.Index })
	return links
}

// parentDevice reads the bus and name of a device; a device of a class has no bus.
func parentDevice(root *Root, device string) (bus, name string) {
	dir, err := root.Resolve(device)
	if err != nil {
		return "", ""
	}
	subsystem, err := root.Readlink(path.Join(dir, "subsystem"))
	if err != nil || path.Base(path.Dir(subsystem)) != "bus" {
		return "", ""
	}
	return path.Base(subsystem), path.Base(dir)
}

// stackLinks sets which links are ports of, or stacked on, which others.
func stackLinks(root *Root, links []link.Link) {
	index := map[string]int{}
	for _, l := range links {
		index[l.Name] = l.Index
	}
	for i, l := range links {
		dir := path.Join("/sys/class/net", l.Name)
		if master, err := root.Readlink(path.Join(dir, "master")); err == nil {
			links[i].Master = index[path.Base(master)]
		}
		entries, _ := root.ReadDir(dir)
		for _, entry := range entries {
			if lower, ok := strings.CutPrefix(entry, "lower_"); ok && l.Kind != "bond" && l.Kind != "bridge" {
				links[i].Lower = index[lower]
			}
		}
	}
}
