package topology

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"podrail/pkg/discover"
)

// Matrix is what `nvidia-smi topo -m` prints: each device's relation to each.
type Matrix struct {
	Devices []Device `json:"devices"`
	// Cells has a row for each device with a cell for each: "X", "NV18", "PIX".
	Cells [][]string `json:"matrix"`
}

// Device is a row and a column of a Matrix.
type Device struct {
	// Name is the matrix' own: "GPU0", "NIC0".
	Name string `json:"name"`
	// UUID and Index are a GPU's.
	UUID  string `json:"uuid,omitempty"`
	Index *int   `json:"index,omitempty"`
	// RDMA and Interface are a NIC's.
	RDMA      string `json:"rdma,omitempty"`
	Interface string `json:"interface,omitempty"`

	PCIAddress string `json:"pciAddress,omitempty"`
	PCIRoot    string `json:"pcieRoot,omitempty"`
	// CPUs and NUMA are those that are near: "0-55,112-167", "0".
	CPUs string `json:"cpuAffinity,omitempty"`
	NUMA string `json:"numaAffinity,omitempty"`

	place Place
	gpu   bool
}

// Only says which devices a matrix is to show; nil is all.
type Only func(gpu *discover.GPU, nic *discover.NIC) bool

// Matrix has the host's GPUs in the order of their indices, then its RDMA
// devices in the order of their names, as NIC0, NIC1 ... Names count over all of
// the host's, whichever are shown. A NIC without RDMA is there when it is asked
// for, under its own name.
func (m *Map) Matrix(only Only) *Matrix {
	var devices []Device
	for _, g := range OnePerGPU(m.host.GPUs) {
		if g.Excluded || only != nil && !only(&g, nil) {
			continue
		}
		devices = append(devices, m.gpuDevice(g))
	}
	for i, r := range m.rdma() {
		if only == nil || only(nil, &r.nic) {
			devices = append(devices, m.nicDevice("NIC"+strconv.Itoa(i), r.name, r.nic))
		}
	}
	for _, n := range m.host.NICs {
		if len(n.RDMA) == 0 && only != nil && only(nil, &n) {
			devices = append(devices, m.nicDevice(n.Name, "", n))
		}
	}
	x := &Matrix{Devices: devices, Cells: [][]string{}}
	for _, a := range devices {
		row := []string{}
		for _, b := range devices {
			row = append(row, m.cell(a, b))
		}
		x.Cells = append(x.Cells, row)
	}
	return x
}

func (m *Map) gpuDevice(g discover.GPU) Device {
	index := g.Index
	return Device{
		Name:       "GPU" + strconv.Itoa(g.Index),
		UUID:       g.UUID,
		Index:      &index,
		PCIAddress: g.PCIAddress,
		PCIRoot:    g.PCIRoot,
		CPUs:       m.cpus(g.NUMANode),
		NUMA:       m.numa(g.NUMANode),
		place:      m.GPU(g),
		gpu:        true,
	}
}

func (m *Map) nicDevice(name, rdma string, n discover.NIC) Device {
	return Device{
		Name:       name,
		RDMA:       rdma,
		Interface:  n.Interface,
		PCIAddress: n.PCIAddress,
		PCIRoot:    n.PCIRoot,
		CPUs:       m.cpus(n.NUMANode),
		NUMA:       m.numa(n.NUMANode),
		place:      m.NIC(n),
	}
}

// rdmaDevice is an RDMA device and the NIC it is part of.
type rdmaDevice struct {
	name string
	nic  discover.NIC
}

// rdma are all RDMA devices by name. One that is part of two NICs, each being a
// port, is there once.
func (m *Map) rdma() []rdmaDevice {
	var out []rdmaDevice
	seen := map[string]bool{}
	for _, n := range m.host.NICs {
		for _, r := range n.RDMA {
			if !seen[r.Name] {
				seen[r.Name] = true
				out = append(out, rdmaDevice{r.Name, n})
			}
		}
	}
	slices.SortFunc(out, func(a, b rdmaDevice) int { return compareNames(a.name, b.name) })
	return out
}

func (m *Map) cell(a, b Device) string {
	if a.Name == b.Name {
		return Self.String()
	}
	if a.gpu && b.gpu {
		if n := m.links.Count(a.PCIAddress, b.PCIAddress); n > 0 {
			return "NV" + strconv.Itoa(n)
		}
	}
	// Two RDMA devices of one function are no further apart than its ports.
	return max(PIX, Between(a.place, b.place)).String()
}

// cpus are the CPUs of a device's NUMA node; of all nodes if it has none.
func (m *Map) cpus(node int) string {
	var out []string
	for _, n := range m.host.NUMANodes {
		if n.ID == m.node(node) || m.node(node) < 0 {
			out = append(out, n.CPUs)
		}
	}
	return joinCPUs(out)
}

// numa is a device's NUMA node, or the range of all if it has none.
func (m *Map) numa(node int) string {
	if n := m.node(node); n >= 0 {
		return strconv.Itoa(n)
	}
	all := m.host.NUMANodes
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", all[0].ID, all[len(all)-1].ID)
}

// joinCPUs is the union of lists in the kernel's format, in its order.
func joinCPUs(lists []string) string {
	if len(lists) == 1 {
		return lists[0]
	}
	type span struct{ from, to int }
	var spans []span
	for _, list := range lists {
		for part := range strings.SplitSeq(list, ",") {
			first, last, ok := strings.Cut(part, "-")
			if !ok {
				last = first
			}
			from, err1 := strconv.Atoi(first)
			to, err2 := strconv.Atoi(last)
			if err1 == nil && err2 == nil {
				spans = append(spans, span{from, to})
			}
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	var out []string
	for i := 0; i < len(spans); i++ {
		s := spans[i]
		for i+1 < len(spans) && spans[i+1].from <= s.to+1 {
			i++
			s.to = max(s.to, spans[i].to)
		}
		if s.from == s.to {
			out = append(out, strconv.Itoa(s.from))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", s.from, s.to))
		}
	}
	return strings.Join(out, ",")
}

// legend is nvidia-smi's.
const legend = `
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
`

// WriteText writes the matrix byte for byte as `nvidia-smi topo -m` does, less
// the underline of its first line on some versions. A cell ends with a tab; a
// GPU's affinities follow, a NIC has three more tabs in their place.
func (x *Matrix) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, d := range x.Devices {
		b.WriteString("\t" + d.Name)
	}
	b.WriteString("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n")
	for i, d := range x.Devices {
		b.WriteString(d.Name + "\t")
		for j, cell := range x.Cells[i] {
			if i == j {
				cell = " X "
			}
			b.WriteString(cell + "\t")
		}
		if d.gpu {
			b.WriteString(cmp.Or(d.CPUs, "N/A") + "\t" + cmp.Or(d.NUMA, "N/A") + "\t\tN/A\n")
		} else {
			b.WriteString("\t\t\t\n")
		}
	}
	b.WriteString(legend)
	nics := slices.DeleteFunc(slices.Clone(x.Devices), func(d Device) bool { return d.RDMA == "" })
	if len(nics) > 0 {
		b.WriteString("\nNIC Legend:\n\n")
		for _, d := range nics {
			fmt.Fprintf(&b, "  %s: %s\n", d.Name, d.RDMA)
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// compareNames orders names as people do: mlx5_2 before mlx5_10.
func compareNames(a, b string) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		m, n := digits(a[i:]), digits(b[i:])
		if m != "" && n != "" && m != n {
			x, errX := strconv.Atoi(m)
			y, errY := strconv.Atoi(n)
			if errX == nil && errY == nil && x != y {
				return x - y
			}
		}
		if a[i] != b[i] {
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(a, b)
}

func digits(s string) string {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return s[:n]
}
