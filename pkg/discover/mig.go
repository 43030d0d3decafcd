package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// capabilitiesDir has a directory for each GPU, named by its minor, with one for
// each GPU instance and, in that, each compute instance
// (src/nvidia/arch/nvalloc/unix/src/os.c, osRmCapRegisterGpu).
const capabilitiesDir = "/proc/driver/nvidia/capabilities"

// readMIG reads the MIG devices of a GPU; a compute instance is one. Their
// number in the order of their ids is NVML's, too, which alone knows their UUIDs.
func readMIG(root *Root, gpu GPU) ([]GPU, error) {
	dir := path.Join(capabilitiesDir, "gpu"+strconv.Itoa(gpu.Minor), "mig")
	gis, err := instances(root, dir, "gi")
	if err != nil || len(gis) == 0 {
		return nil, err
	}
	var out []GPU
	var errs []error
	for _, gi := range gis {
		giDir := path.Join(dir, "gi"+strconv.Itoa(gi))
		cis, err := instances(root, giDir, "ci")
		if err != nil {
			errs = append(errs, err)
		}
		for _, ci := range cis {
			part, err := migDevice(root, gpu, MIG{Parent: gpu.UUID, Index: len(out), GI: gi, CI: ci}, giDir)
			if err != nil {
				errs = append(errs, err)
			}
			out = append(out, part)
		}
	}
	if len(out) == 0 {
		errs = append(errs, errNoMIGDevice)
	}
	return out, errors.Join(errs...)
}

var errNoMIGDevice = errors.New("GPU is in MIG mode and has no MIG device, so nothing can use it: " +
	"make one (nvidia-smi mig -cgi PROFILE -C), or turn MIG mode off (nvidia-smi -mig 0)")

// instances are the ids of the directories called that and a number.
func instances(root *Root, dir, what string) ([]int, error) {
	names, err := root.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []int
	for _, name := range names {
		number, ok := strings.CutPrefix(name, what)
		if id, err := strconv.Atoi(number); ok && err == nil && id >= 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// migDevice is a GPU's MIG device. It has nodes only if it has all: the GPU's
// and those of both instances. With an error it is what could be read.
func migDevice(root *Root, gpu GPU, mig MIG, giDir string) (GPU, error) {
	part := gpu
	part.MIG = &mig
	part.DRM = nil
	part.Name = gpu.Name + ":" + strconv.Itoa(mig.Index)
	part.UUID = fmt.Sprintf("MIG-%s/%d/%d", mig.Parent, mig.GI, mig.CI)
	part.Model = fmt.Sprintf("%s MIG %d/%d", gpu.Model, mig.GI, mig.CI)
	if len(gpu.Nodes) == 0 {
		return part, nil
	}
	nodes := slices.Clone(gpu.Nodes)
	part.Nodes = []DeviceNode{}
	for _, dir := range []string{giDir, path.Join(giDir, "ci"+strconv.Itoa(mig.CI))} {
		node, err := capNode(root, path.Join(dir, "access"))
		if err != nil || node == nil {
			return part, err
		}
		nodes = append(nodes, *node)
	}
	part.Nodes = nodes
	return part, nil
}

// capNode is the node of a capability; nil if a container has not got it.
func capNode(root *Root, access string) (*DeviceNode, error) {
	data, err := root.ReadFile(access)
	if err != nil {
		return nil, err
	}
	minor, err := strconv.ParseUint(colonFields(string(data))["DeviceFileMinor"], 10, 20)
	if err != nil {
		return nil, fmt.Errorf("%s has no DeviceFileMinor", access)
	}
	node := root.optional(fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
	if node != nil && uint64(node.Minor) != minor {
		return nil, fmt.Errorf("%s is device %d:%d, want minor %d (%s)", node.Path, node.Major, node.Minor, minor, access)
	}
	return node, nil
}

// ErrNoNVML says that this program was built without cgo, which NVML needs.
var ErrNoNVML = errors.New("this program was built without NVML (CGO_ENABLED=0)")

// nvmlPart is what NVML says of one MIG device.
type nvmlPart struct {
	index, gi, ci int
	uuid          string
}

// applyNVML takes over what NVML says of one GPU: whether it is in MIG mode, and
// its MIG devices' numbers and UUIDs.
func (h *Host) applyNVML(parent string, enabled bool, parts []nvmlPart) {
	if !enabled {
		return
	}
	i := slices.IndexFunc(h.GPUs, func(g GPU) bool { return g.MIG == nil && g.UUID == parent })
	if i >= 0 { // procfs shows no instance
		h.problem(h.GPUs[i].PCIAddress, errNoMIGDevice)
		h.GPUs = slices.Delete(h.GPUs, i, i+1)
		return
	}
	for i := range h.GPUs {
		g := &h.GPUs[i]
		if g.MIG == nil || g.MIG.Parent != parent {
			continue
		}
		for _, p := range parts {
			if p.gi == g.MIG.GI && p.ci == g.MIG.CI {
				name, _, _ := strings.Cut(g.Name, ":")
				g.Name, g.UUID = name+":"+strconv.Itoa(p.index), p.uuid
				g.MIG = &MIG{Parent: parent, Index: p.index, GI: p.gi, CI: p.ci}
			}
		}
	}
	slices.SortStableFunc(h.GPUs, func(a, b GPU) int {
		if a.MIG == nil || b.MIG == nil || a.MIG.Parent != b.MIG.Parent {
			return 0
		}
		return cmp.Compare(a.MIG.Index, b.MIG.Index)
	})
}
