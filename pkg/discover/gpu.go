package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Facts about NVIDIA's driver come from its procfs files, which
// kernel-open/nvidia/nv-procfs.c of its open kernel modules writes.
const (
	gpusDir     = "/proc/driver/nvidia/gpus"
	versionFile = "/proc/driver/nvidia/version"
	// gpuMajor is NV_MAJOR_DEVICE_NUMBER, registered for NVIDIA; the driver's
	// other majors are dynamic.
	gpuMajor = 195
	// WSLNode stands for all GPUs in Linux on Windows.
	WSLNode = "/dev/dxg"
)

var (
	gpuUUID = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	version = regexp.MustCompile(`\b[0-9]+\.[0-9]+(\.[0-9]+)*\b`)
)

// readGPUs reads all GPUs. The index is the driver's own (NVML's, nvidia-smi's):
// in PCI order, where a GPU that cannot be read counts and an excluded one does not.
func (h *Host) readGPUs(root *Root, tree *pciTree) {
	names, err := root.ReadDir(gpusDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.problem(gpusDir, err)
	}
	slices.SortFunc(names, comparePCI)
	if len(names) == 0 {
		h.readGPUNodes(root, tree)
		return
	}
	index := 0
	for _, address := range names {
		gpu, err := readGPU(root, tree, address)
		if err != nil {
			h.problem(address, err)
			index++
			continue
		}
		if gpu.Excluded {
			gpu.Index, gpu.Name = -1, address
		} else {
			gpu.Index, gpu.Name = index, strconv.Itoa(index)
			index++
		}
		if err := checkNode(root, gpu); err != nil {
			h.problem(address, err)
		}
		parts, err := readMIG(root, gpu)
		if err != nil {
			h.problem(address, err)
		}
		switch {
		case len(parts) > 0:
			h.GPUs = append(h.GPUs, parts...)
		case !errors.Is(err, errNoMIGDevice):
			h.GPUs = append(h.GPUs, gpu)
		}
	}
}

// readGPUNodes goes by the device nodes alone, where the driver's directory in
// procfs is masked or is not there: a container may be given such a /proc, and
// Windows has none. UUIDs are not known then, and which GPU is at which PCI
// address only if there is one.
func (h *Host) readGPUNodes(root *Root, tree *pciTree) {
	var functions []PCIDevice
	for _, d := range tree.list() {
		if d.Vendor == "0x10de" && strings.HasPrefix(d.Class, "0x03") && d.Driver == "nvidia" {
			functions = append(functions, d)
		}
	}
	nodes, _ := root.DeviceNodes("/dev/nvidia*")
	nodes = slices.DeleteFunc(nodes, func(n DeviceNode) bool {
		return n.Path != gpuNode(int(n.Minor)) || n.Major != gpuMajor
	})
	slices.SortFunc(nodes, func(a, b DeviceNode) int { return cmp.Compare(a.Minor, b.Minor) })
	for i, node := range nodes {
		gpu := GPU{Name: strconv.Itoa(i), Index: i, Minor: int(node.Minor), NUMANode: -1, Nodes: []DeviceNode{node}}
		if len(nodes) == 1 && len(functions) == 1 {
			gpu.at(root, functions[0])
		}
		h.GPUs = append(h.GPUs, gpu)
	}
	if node := root.optional(WSLNode); node != nil && len(nodes) == 0 {
		h.GPUs = append(h.GPUs, GPU{Name: "0", Model: "GPUs of Windows", NUMANode: -1, Nodes: []DeviceNode{*node}})
	}
}

// at says where on the PCI bus a GPU is, and which nodes for graphics that has.
func (g *GPU) at(root *Root, d PCIDevice) {
	g.PCIAddress = d.Address
	g.NUMANode, g.PCIRoot, g.PCIPath = d.NUMANode, d.Root, d.chain()
	dir := path.Join("/sys/bus/pci/devices", d.Address, "drm")
	names, _ := root.ReadDir(dir)
	for _, name := range names {
		node := root.optional("/dev/dri/" + name)
		// A node of other numbers is another device's by now.
		if node == nil || readWord(root, path.Join(dir, name, "dev")) != fmt.Sprintf("%d:%d", node.Major, node.Minor) {
			continue
		}
		drm := DRMNode{DeviceNode: *node}
		link := "/dev/dri/by-path/pci-" + d.Address + "-" + strings.TrimRight(name, "0123456789")
		link = strings.TrimSuffix(link, "D") // renderD128
		if target, err := root.Readlink(link); err == nil && path.Base(target) == name {
			drm.ByPath = link
		}
		g.DRM = append(g.DRM, drm)
	}
}

func readGPU(root *Root, tree *pciTree, address string) (GPU, error) {
	data, err := root.ReadFile(path.Join(gpusDir, address, "information"))
	if err != nil {
		return GPU{}, err
	}
	info := colonFields(string(data))
	gpu := GPU{
		Nodes:      []DeviceNode{},
		UUID:       info["GPU UUID"],
		PCIAddress: strings.ToLower(address),
		Model:      info["Model"],
		Excluded:   info["GPU Excluded"] == "Yes",
	}
	if gpu.Minor, err = strconv.Atoi(info["Device Minor"]); err != nil || gpu.Minor < 0 {
		return GPU{}, fmt.Errorf("GPU has no device minor number: %q", info["Device Minor"])
	}
	switch {
	case gpuUUID.MatchString(gpu.UUID):
	case strings.Contains(gpu.UUID, "?"):
		return GPU{}, errors.New("GPU has no UUID yet, as nothing has opened it since the driver was loaded: run nvidia-smi once, or nvidia-persistenced")
	default:
		return GPU{}, fmt.Errorf("GPU has no valid UUID: %q", gpu.UUID)
	}
	gpu.at(root, tree.get(gpu.PCIAddress))
	if node := root.optional(gpuNode(gpu.Minor)); node != nil && isNodeOf(gpu, *node) {
		gpu.Nodes = []DeviceNode{*node}
	}
	return gpu, nil
}

func gpuNode(minor int) string { return "/dev/nvidia" + strconv.Itoa(minor) }

func isNodeOf(gpu GPU, node DeviceNode) bool {
	return node.Major == gpuMajor && int(node.Minor) == gpu.Minor
}

// checkNode says what is wrong with a node that is there and is not the GPU's:
// giving it to a container would give another GPU. No node at all is no
// problem, but how a container looks that was not given this GPU.
func checkNode(root *Root, gpu GPU) error {
	name := gpuNode(gpu.Minor)
	node, err := root.DeviceNode(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !isNodeOf(gpu, node):
		return fmt.Errorf("%s is device %d:%d, want %d:%d", name, node.Major, node.Minor, gpuMajor, gpu.Minor)
	}
	return nil
}

// colonFields parses lines of a name, a colon, white space and a value.
func colonFields(s string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(s) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return fields
}

// readDriver reads the driver's version and the nodes that all GPUs share.
func (h *Host) readDriver(root *Root) {
	h.DriverVersion = driverVersion(root)
	for _, name := range []string{"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"} {
		if node := root.optional("/dev/" + name); node != nil {
			h.ControlNodes = append(h.ControlNodes, *node)
		}
	}
}

// driverVersion finds the version in
//
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...
//
// or, in containers without that file, in the module's own.
func driverVersion(root *Root) string {
	if data, err := root.ReadFile(versionFile); err == nil {
		first, _, _ := strings.Cut(string(data), "\n")
		if v := version.FindString(first); v != "" {
			return v
		}
	}
	data, _ := root.ReadFile("/sys/module/nvidia/version")
	return version.FindString(string(data))
}

// comparePCI orders PCI addresses: domains may have more than four digits.
func comparePCI(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
