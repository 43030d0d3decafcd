package cdi

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// allDevices is the name of the device that is all devices of its spec.
const allDevices = "all"

// gpuSpec has a device for each GPU under its index among the given ones, the
// same again under its UUID, and "all". What every GPU container needs is at
// spec level: control nodes, driver libraries, tools.
func gpuSpec(root *discover.Root, host *discover.Host, gpus []discover.GPU, o Options) (*specs.Spec, error) {
	gpus = slices.Clone(gpus)
	slices.SortStableFunc(gpus, func(a, b discover.GPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(part(a), part(b)))
	})
	common, err := commonEdits(root, host, gpus, o)
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{ContainerEdits: common}
	all := specs.Device{Name: allDevices}
	var byUUID []specs.Device
	for i, name := range podNames(gpus) {
		edits, err := gpuEdits(gpus[i], o)
		if err != nil {
			return nil, err
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: edits})
		if gpus[i].UUID != "" {
			byUUID = append(byUUID, specs.Device{Name: deviceUUID(gpus[i]), ContainerEdits: edits})
		}
		all.ContainerEdits.DeviceNodes = addNodes(all.ContainerEdits.DeviceNodes, edits.DeviceNodes)
	}
	spec.Devices = append(append(spec.Devices, byUUID...), all)
	return spec, nil
}

// deviceUUID is a GPU's UUID as a CDI device's name, which "MIG-GPU-UUID/1/0"
// cannot be.
func deviceUUID(g discover.GPU) string { return strings.ReplaceAll(g.UUID, "/", ":") }

// part is a MIG device's number in its GPU.
func part(g discover.GPU) int {
	if g.MIG == nil {
		return -1
	}
	return g.MIG.Index
}

// podNames are the GPUs' indices among the given ones, which are in PCI order
// whatever the order in which they were asked for: that is how CUDA
// (CUDA_DEVICE_ORDER=PCI_BUS_ID) and NVML count in a container that has just
// these. MIG devices count in their GPU: "0:1".
func podNames(gpus []discover.GPU) []string {
	var out []string
	gpu, mig := -1, 0
	for i, g := range gpus {
		if i > 0 && g.MIG != nil && gpus[i-1].MIG != nil && g.MIG.Parent == gpus[i-1].MIG.Parent {
			mig++
		} else {
			gpu++
			mig = 0
		}
		name := strconv.Itoa(gpu)
		if g.MIG != nil {
			name += ":" + strconv.Itoa(mig)
		}
		out = append(out, name)
	}
	return out
}

// gpuEdits are a GPU's own nodes. The links by which programs find a graphics
// node from a PCI address become nodes of that name: a spec has no links, and
// engines without root bind what the link leads to.
func gpuEdits(gpu discover.GPU, o Options) (specs.ContainerEdits, error) {
	if len(gpu.Nodes) == 0 {
		return specs.ContainerEdits{}, noNode(gpu)
	}
	edits := specs.ContainerEdits{DeviceNodes: nodes(gpu.Nodes)}
	if !drawing(o.Capabilities) {
		return edits, nil
	}
	for _, drm := range gpu.DRM {
		edits.DeviceNodes = append(edits.DeviceNodes, node(drm.DeviceNode))
		if drm.ByPath != "" {
			link := node(drm.DeviceNode)
			link.Path, link.HostPath = drm.ByPath, drm.Path
			edits.DeviceNodes = append(edits.DeviceNodes, link)
		}
	}
	return edits, nil
}

func noNode(gpu discover.GPU) error {
	if gpu.MIG != nil {
		dir := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", gpu.Minor, gpu.MIG.GI)
		return fmt.Errorf("MIG device %s (%s): no device node /dev/nvidia%d, or none below /dev/nvidia-caps: "+
			"make them (nvidia-modprobe -c %d -f %s/access -f %s/ci%d/access)", gpu.Name, gpu.UUID, gpu.Minor, gpu.Minor, dir, dir, gpu.MIG.CI)
	}
	return fmt.Errorf("GPU %s (%s): no device node /dev/nvidia%d: load the driver fully (nvidia-modprobe -c %d)",
		gpu.PCIAddress, gpu.UUID, gpu.Minor, gpu.Minor)
}

// addNodes adds those whose path is not there yet.
func addNodes(list, more []*specs.DeviceNode) []*specs.DeviceNode {
	for _, n := range more {
		if !slices.ContainsFunc(list, func(old *specs.DeviceNode) bool { return old.Path == n.Path }) {
			list = append(list, n)
		}
	}
	return list
}

// commonEdits are what every container with a GPU gets.
func commonEdits(root *discover.Root, host *discover.Host, gpus []discover.GPU, o Options) (specs.ContainerEdits, error) {
	edits := specs.ContainerEdits{
		// Any other value, an image's "all" among them, makes the NVIDIA
		// toolkit's legacy hook add GPUs of its own choice.
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
	}
	if onWSL(gpus) {
		mounts, err := wslMounts(root, o)
		edits.Mounts = mounts
		return edits, err
	}
	control, err := controlNodes(host, o.Capabilities)
	if err != nil {
		return edits, err
	}
	edits.DeviceNodes = nodes(control)
	if edits.Mounts, err = driverMounts(root, host.DriverVersion, o); err != nil {
		return edits, err
	}
	more, err := extraEdits(root, o.Capabilities, root.Live() && inContainer(root))
	if err != nil {
		return edits, err
	}
	edits.DeviceNodes = addNodes(edits.DeviceNodes, more.DeviceNodes)
	edits.Mounts = append(edits.Mounts, more.Mounts...)
	if o.LDCachePath != "" {
		h, err := ldcacheHook(root, o.LDCachePath, edits.Mounts)
		if err != nil {
			return edits, err
		}
		edits.Hooks = append(edits.Hooks, h)
	}
	return edits, nil
}

// controlNodes are the host's, which must have those that the capabilities
// cannot do without.
func controlNodes(host *discover.Host, capabilities []Capability) ([]discover.DeviceNode, error) {
	need := []string{"/dev/nvidiactl"}
	if slices.Contains(capabilities, Compute) {
		need = append(need, "/dev/nvidia-uvm")
	}
	for _, path := range need {
		if !slices.ContainsFunc(host.ControlNodes, func(n discover.DeviceNode) bool { return n.Path == path }) {
			return nil, fmt.Errorf("%s is missing: a GPU cannot be used without it; load the driver fully (nvidia-modprobe -u -c 0)", path)
		}
	}
	return host.ControlNodes, nil
}
