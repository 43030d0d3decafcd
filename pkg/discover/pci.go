package discover

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	pciRoot    = regexp.MustCompile(`^pci[0-9a-f]{4,}:[0-9a-f]{2}$`)
)

// pciTree are the PCI functions of a host by address.
type pciTree struct {
	root      *Root
	functions map[string]PCIDevice
}

// readPCI reads all PCI functions. Those that vanish meanwhile are left out.
func readPCI(root *Root) *pciTree {
	t := &pciTree{root: root, functions: map[string]PCIDevice{}}
	addresses, _ := root.ReadDir("/sys/bus/pci/devices")
	for _, address := range addresses {
		dir, err := root.Resolve(path.Join("/sys/bus/pci/devices", address))
		if err != nil {
			continue
		}
		d := PCIDevice{Address: address}
		d.Root, d.Path = pciPath(dir)
		// One file instead of class, vendor, device and the link to the driver.
		event := readEvent(root, dir)
		d.Driver = event["DRIVER"]
		d.Class = hexID(event["PCI_CLASS"], 6)
		vendor, device, _ := strings.Cut(event["PCI_ID"], ":")
		d.Vendor, d.Device = hexID(vendor, 4), hexID(device, 4)
		d.NUMANode = readNumber(root, path.Join(dir, "numa_node"), -1)
		t.functions[address] = d
	}
	return t
}

// get returns a function; one that is not known has no root, and NUMA node -1.
func (t *pciTree) get(address string) PCIDevice {
	if d, ok := t.functions[address]; ok {
		return d
	}
	return PCIDevice{Address: address, NUMANode: -1}
}

// list returns all functions by address.
func (t *pciTree) list() []PCIDevice {
	return slices.SortedFunc(maps.Values(t.functions), func(a, b PCIDevice) int {
		return comparePCI(a.Address, b.Address)
	})
}

// chain is the path with the function itself at its end.
func (d PCIDevice) chain() []string {
	if d.Root == "" {
		return nil
	}
	return append(slices.Clone(d.Path), d.Address)
}

// pciPath takes a device's sysfs directory apart:
//
//	/sys/devices/pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:00.0/0000:23:10.0
//
// is below the host bridge pci0000:20, behind three bridges. Other buses may
// come before it (Hyper-V, VMD, platforms without ACPI), and devices of other
// buses after it (virtio).
func pciPath(dir string) (root string, bridges []string) {
	for element := range strings.SplitSeq(dir, "/") {
		switch {
		case pciRoot.MatchString(element):
			root, bridges = element, nil
		case root != "" && pciAddress.MatchString(element):
			bridges = append(bridges, element)
		}
	}
	if len(bridges) > 0 {
		bridges = bridges[:len(bridges)-1]
	}
	return root, bridges
}

// pciFunction is the PCI function that a device is, or is beneath: the last PCI
// address in its sysfs directory. A virtio NIC's device is the virtio one.
func pciFunction(dir string) string {
	elements := strings.Split(dir, "/")
	for _, element := range slices.Backward(elements) {
		if pciAddress.MatchString(element) {
			return element
		}
	}
	return ""
}

// readNUMA reads the NUMA nodes that have a directory.
func (h *Host) readNUMA(root *Root) {
	const dir = "/sys/devices/system/node"
	names, _ := root.ReadDir(dir)
	for _, name := range names {
		number, ok := strings.CutPrefix(name, "node")
		id, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue
		}
		h.NUMANodes = append(h.NUMANodes, NUMANode{ID: id, CPUs: readWord(root, path.Join(dir, name, "cpulist"))})
	}
	slices.SortFunc(h.NUMANodes, func(a, b NUMANode) int { return a.ID - b.ID })
}

// readEvent reads a device's uevent file: lines of NAME=value.
func readEvent(root *Root, dir string) map[string]string {
	fields := map[string]string{}
	data, _ := root.ReadFile(path.Join(dir, "uevent"))
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			fields[name] = value
		}
	}
	return fields
}

// readWord reads a file of one line; "" where there is none.
func readWord(root *Root, name string) string {
	data, _ := root.ReadFile(name)
	return strings.TrimSpace(string(data))
}

// readNumber reads a file that holds a number in C's notation.
func readNumber(root *Root, name string, otherwise int) int {
	n, err := strconv.ParseInt(readWord(root, name), 0, 64)
	if err != nil {
		return otherwise
	}
	return int(n)
}

// hexID spells a number of a uevent file as the attribute files do: "0x030200".
func hexID(s string, digits int) string {
	if s == "" {
		return ""
	}
	return "0x" + strings.Repeat("0", max(0, digits-len(s))) + strings.ToLower(s)
}
