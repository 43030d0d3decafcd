// Package discover says what a host has: NVIDIA GPUs, network interfaces and
// RDMA devices with their character devices, the PCI tree between them, NUMA
// nodes.
//
// It reads procfs, sysfs and /dev below a root directory, so that a copy of
// another host's files is read by the same code as this host:
//
//	root, err := discover.OpenRoot("/")
//	if err != nil { ... }
//	defer root.Close()
//	host, err := discover.Read(root)
//	if err != nil { ... }
//	for _, gpu := range host.GPUs {
//		fmt.Println(gpu.Name, gpu.UUID, gpu.PCIAddress)
//	}
//
// Links, addresses and routes come from the kernel by netlink where the root is
// "/", else from the tree's net.json, which is a link.State. A tree without
// that file has the links that its sysfs shows, and no addresses and routes.
package discover

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"podrail/internal/link"
)

// Read reads a host's inventory. A device that cannot be read fully is among
// the inventory's Problems and hides no other; an error says that the root as a
// whole is unusable.
func Read(root *Root) (*Host, error) {
	h := &Host{Devices: Devices{GPUs: []GPU{}, NICs: []NIC{}}}
	network, err := readNetwork(root)
	if err != nil {
		return nil, err
	}
	tree := readPCI(root)
	h.PCI = tree.list()
	h.readNUMA(root)
	h.readDriver(root)
	h.readGPUs(root, tree)
	h.readNICs(root, tree, network)
	return h, nil
}

func (h *Host) problem(device string, err error) {
	h.Problems = append(h.Problems, Problem{Device: device, Text: err.Error()})
}

// network is what is known of the links and of the routes over them.
type network struct {
	link.State
	// unknown is why there are no routes to tell uplinks by.
	unknown error
}

// readNetwork asks the kernel or the tree's net.json; failing that, sysfs.
func readNetwork(root *Root) (network, error) {
	if root.Live() {
		state, err := readNetlink()
		if err != nil {
			return network{State: link.State{Links: sysfsLinks(root)}, unknown: err}, nil
		}
		return network{State: state}, nil
	}
	data, err := root.ReadFile("/net.json")
	if errors.Is(err, fs.ErrNotExist) {
		return network{State: link.State{Links: sysfsLinks(root)}}, nil
	}
	if err != nil {
		return network{}, err
	}
	var n network
	if err := json.Unmarshal(data, &n.State); err != nil {
		return network{}, fmt.Errorf("%s: %w", root.outside("/net.json"), err)
	}
	return n, nil
}

func readNetlink() (link.State, error) {
	c, err := link.Open()
	if err != nil {
		return link.State{}, err
	}
	defer c.Close()
	return c.State()
}

// compareNatural orders names as people do: nic2 before nic10.
func compareNatural(a, b string) int {
	whole := cmp.Compare(a, b)
	for a != "" && b != "" {
		m, n := digits(a), digits(b)
		if m == "" || n == "" {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		a, b = a[len(m):], b[len(n):]
		m, n = trimZeros(m), trimZeros(n)
		if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), whole)
}

// digits is the number that a name begins with.
func digits(s string) string {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return s[:n]
}

func trimZeros(s string) string {
	for len(s) > 1 && s[0] == '0' {
		s = s[1:]
	}
	return s
}
