// Package topology says how near two devices of a host are, and which NICs fit
// which GPUs.
//
// Nearness has NVIDIA's words and meaning (NVML's nvmlGpuTopologyLevel_t), and
// comes from sysfs' PCI paths and NUMA nodes alone:
//
//	m := topology.New(host, links)
//	fmt.Println(m.Between(m.GPU(gpu), m.NIC(nic))) // PIX
//	m.WriteText(os.Stdout)                          // as nvidia-smi topo -m does
package topology

import (
	"fmt"

	"podrail/pkg/discover"
)

// Relation is how near two devices are, the nearest first.
type Relation int

// The relations of `nvidia-smi topo -m`.
const (
	// Self is a device and itself.
	Self Relation = iota
	// PIX: the path has at most one PCIe bridge or switch.
	PIX
	// PXB: the path has more than one, and does not reach the host bridge.
	PXB
	// PHB: the path goes through one host bridge, most often the CPU.
	PHB
	// NODE: the path goes from one host bridge to another of the same NUMA node.
	NODE
	// SYS: the path goes from one NUMA node to another, or nobody knows.
	SYS
)

func (r Relation) String() string {
	words := []string{"X", "PIX", "PXB", "PHB", "NODE", "SYS"}
	if r < Self || int(r) >= len(words) {
		return fmt.Sprintf("Relation(%d)", int(r))
	}
	return words[r]
}

// Place is where a device is in a machine.
type Place struct {
	// Root is the host bridge: "pci0000:8c". A device without one is nowhere.
	Root string
	// Path are the PCI functions from the host bridge to the device, which is
	// the last.
	Path []string
	// NUMANode is -1 if it is not known.
	NUMANode int
}

// Between says how near two places are.
//
// What the two paths share decides. A switch is an upstream port, which both
// paths have, and a downstream port for each device, so two devices that are
// below one switch have two steps each after what they share; two functions on
// one bus have one. Any more is another bridge between them.
func Between(a, b Place) Relation {
	if a.Root == "" || b.Root == "" {
		return SYS
	}
	if a.Root != b.Root {
		if a.NUMANode >= 0 && a.NUMANode == b.NUMANode {
			return NODE
		}
		return SYS
	}
	shared := 0
	for shared < len(a.Path) && shared < len(b.Path) && a.Path[shared] == b.Path[shared] {
		shared++
	}
	switch steps := max(len(a.Path), len(b.Path)) - shared; {
	case steps == 0:
		return Self
	case shared == 0:
		return PHB
	case steps <= 2:
		return PIX
	default:
		return PXB
	}
}

// Map is a host's devices and what is between them.
type Map struct {
	host  *discover.Host
	links Links
}

// New makes the map of a host. Links may be nil.
func New(host *discover.Host, links Links) *Map {
	return &Map{host: host, links: links}
}

// GPU is where a GPU is.
func (m *Map) GPU(g discover.GPU) Place {
	return Place{Root: g.PCIRoot, Path: g.PCIPath, NUMANode: m.node(g.NUMANode)}
}

// NIC is where a NIC is.
func (m *Map) NIC(n discover.NIC) Place {
	return Place{Root: n.PCIRoot, Path: n.PCIPath, NUMANode: m.node(n.NUMANode)}
}

// Between a GPU and a NIC.
func (m *Map) Between(g discover.GPU, n discover.NIC) Relation {
	return Between(m.GPU(g), m.NIC(n))
}

// node is a device's NUMA node: where the firmware names none and there is but
// one, it is that one.
func (m *Map) node(n int) int {
	if n < 0 && len(m.host.NUMANodes) == 1 {
		return m.host.NUMANodes[0].ID
	}
	return n
}
