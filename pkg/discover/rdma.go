package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"podrail/internal/link"
)

// The classes of ib_core, ib_uverbs and ib_umad. In exclusive mode the first
// shows the RDMA devices of one network namespace; the others, whose entries
// name their device in "ibdev", always show those of all.
const (
	rdmaClass  = "/sys/class/infiniband"
	verbsClass = "/sys/class/infiniband_verbs"
	madClass   = "/sys/class/infiniband_mad"
)

// attachRDMA reads the RDMA devices and attaches each to its NICs; one without
// an interface becomes a NIC of its own.
func (h *Host) attachRDMA(root *Root, tree *pciTree, nics []*candidate) []*candidate {
	names, err := root.ReadDir(rdmaClass)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.problem(rdmaClass, err)
	}
	slices.SortFunc(names, compareNatural)
	if len(names) > 0 {
		h.RDMACM = root.optional("/dev/infiniband/rdma_cm")
	}
	nodes := rdmaNodeNames(root)
	links := nics
	for _, name := range names {
		dev, err := readRDMADevice(root, name, nodes[name])
		if err != nil {
			h.problem(name, err)
		}
		owners := rdmaOwners(root, dev, links)
		if len(owners) == 0 {
			own := rdmaOnly(root, tree, name)
			nics, owners = append(nics, own), []*candidate{own}
		}
		for _, c := range owners {
			c.nic.RDMA = append(c.nic.RDMA, dev)
		}
	}
	return nics
}

// readRDMADevice reads one device. With an error it returns what it could read.
func readRDMADevice(root *Root, name string, nodes []string) (RDMADevice, error) {
	dir := path.Join(rdmaClass, name)
	dev := RDMADevice{
		Name:     name,
		NodeGUID: readWord(root, path.Join(dir, "node_guid")),
		NodeType: enumWord(readWord(root, path.Join(dir, "node_type"))),
	}
	ports, err := root.ReadDir(path.Join(dir, "ports"))
	var errs []error
	if err != nil {
		errs = append(errs, err)
	}
	for _, port := range ports {
		number, err := strconv.Atoi(port)
		if err != nil {
			continue
		}
		dir := path.Join(dir, "ports", port)
		dev.Ports = append(dev.Ports, RDMAPort{
			Number:    number,
			LinkLayer: readWord(root, path.Join(dir, "link_layer")),
			State:     enumWord(readWord(root, path.Join(dir, "state"))),
			Interface: readWord(root, path.Join(dir, "gid_attrs/ndevs/0")),
		})
	}
	slices.SortFunc(dev.Ports, func(a, b RDMAPort) int { return a.Number - b.Number })
	return dev, errors.Join(append(errs, dev.addNodes(root, nodes))...)
}

// addNodes adds the character devices among the class entries that name this
// device. A node with another number than sysfs says is another device's by
// now, and left out.
func (d *RDMADevice) addNodes(root *Root, entries []string) error {
	var errs []error
	for _, entry := range entries {
		name := path.Base(entry)
		node := root.optional("/dev/infiniband/" + name)
		if node == nil {
			continue
		}
		numbers := fmt.Sprintf("%d:%d", node.Major, node.Minor)
		if want := readWord(root, path.Join(entry, "dev")); want != "" && want != numbers {
			errs = append(errs, fmt.Errorf("%s is device %s, want %s", node.Path, numbers, want))
			continue
		}
		switch {
		case strings.HasPrefix(name, "uverbs"):
			d.Uverbs = node
		case strings.HasPrefix(name, "umad"):
			d.UMAD = append(d.UMAD, *node)
		case strings.HasPrefix(name, "issm"):
			d.ISSM = append(d.ISSM, *node)
		}
	}
	return errors.Join(errs...)
}

// rdmaNodeNames reads which class entries belong to which RDMA device.
func rdmaNodeNames(root *Root) map[string][]string {
	entries := map[string][]string{}
	for _, class := range []string{verbsClass, madClass} {
		names, _ := root.ReadDir(class)
		slices.SortFunc(names, compareNatural)
		for _, name := range names {
			dir := path.Join(class, name)
			if dev := readWord(root, path.Join(dir, "ibdev")); dev != "" {
				entries[dev] = append(entries[dev], dir)
			}
		}
	}
	return entries
}

// rdmaOwners are the NICs whose ports an RDMA device has: those on the same
// device, by port number; for a software device, which has none beneath, the
// link that it was made on.
func rdmaOwners(root *Root, dev RDMADevice, nics []*candidate) []*candidate {
	dir, err := root.Resolve(path.Join(rdmaClass, dev.Name, "device"))
	if err != nil {
		return softwareOwner(root, dev, nics)
	}
	nics = slices.DeleteFunc(slices.Clone(nics), func(c *candidate) bool { return c.dir != dir })
	var owners []*candidate
	for _, port := range dev.Ports {
		owner := portOwner(nics, port)
		if owner != nil && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	if len(owners) == 0 && len(nics) == 1 { // the ports are unreadable, or count otherwise
		return nics
	}
	return owners
}

// softwareOwner is the link that rxe names in "parent", siw in its first GID.
func softwareOwner(root *Root, dev RDMADevice, nics []*candidate) []*candidate {
	names := []string{readWord(root, path.Join(rdmaClass, dev.Name, "parent"))}
	for _, port := range dev.Ports {
		names = append(names, port.Interface)
	}
	for _, name := range names {
		for _, c := range nics {
			if name != "" && c.link.Name == name {
				return []*candidate{c}
			}
		}
	}
	return nil
}

// portOwner finds the link of a port: interfaces count ports from 0, RDMA
// devices from 1. Where several links have one port (representors, IPoIB
// children) it is the one that the port names, else the eldest.
func portOwner(nics []*candidate, port RDMAPort) *candidate {
	var found *candidate
	for _, c := range nics {
		if c.link.Port != port.Number-1 {
			continue
		}
		if c.link.Name == port.Interface {
			return c
		}
		if found == nil || c.link.Index < found.link.Index {
			found = c
		}
	}
	return found
}

// rdmaOnly is a NIC without an interface: the RDMA device is of a kind that has
// none, or its interface is in another network namespace. Its identity is the
// one that an interface of its device has.
func rdmaOnly(root *Root, tree *pciTree, name string) *candidate {
	c := &candidate{nic: NIC{Name: name, Identity: "rdma/" + name, Kind: Virtual, NUMANode: -1}}
	dir, err := root.Resolve(path.Join(rdmaClass, name, "device"))
	if err != nil {
		return c
	}
	bus, dev := parentDevice(root, dir)
	if dev != "" {
		c.nic.Identity = link.Link{ParentBus: bus, ParentDev: dev}.Identity()
	}
	c.nic.Kind = PF
	c.nic.describeDevice(root, tree, dir)
	return c
}

// enumWord is the word of "4: ACTIVE".
func enumWord(s string) string {
	if _, word, ok := strings.Cut(s, ": "); ok {
		return word
	}
	return s
}
