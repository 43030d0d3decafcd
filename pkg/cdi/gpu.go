package cdi

import (
	"fmt"
	"slices"
	"strconv"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// allDevices is the name of the device that is all devices of its spec.
const allDevices = "all"

// gpuSpec has a device for each GPU under its index among the given ones, the
// same again under its UUID, and "all". What every GPU container needs is at
// spec level: control nodes, driver libraries, tools.
//
// The index counts in PCI order whatever the order in which GPUs were asked for:
// that is how CUDA (CUDA_DEVICE_ORDER=PCI_BUS_ID) and NVML count in a container
// that has just these.
func gpuSpec(root *discover.Root, host *discover.Host, gpus []discover.GPU, o Options) (*specs.Spec, error) {
	gpus = slices.Clone(gpus)
	slices.SortFunc(gpus, func(a, b discover.GPU) int { return a.Index - b.Index })

	control, err := controlNodes(host, o.Capabilities)
	if err != nil {
		return nil, err
	}
	driver, err := driverMounts(root, host.DriverVersion, o)
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{ContainerEdits: specs.ContainerEdits{
		// Any other value, an image's "all" among them, makes the NVIDIA
		// toolkit's legacy hook add GPUs of its own choice.
		Env:         []string{"NVIDIA_VISIBLE_DEVICES=void"},
		DeviceNodes: nodes(control),
		Mounts:      driver,
	}}
	var all []discover.DeviceNode
	var byUUID []specs.Device
	for i, gpu := range gpus {
		if len(gpu.Nodes) == 0 {
			return nil, fmt.Errorf("GPU %s (%s): no device node /dev/nvidia%d: load the driver fully (nvidia-modprobe -c %d)",
				gpu.PCIAddress, gpu.UUID, gpu.Minor, gpu.Minor)
		}
		all = append(all, gpu.Nodes...)
		spec.Devices = append(spec.Devices, nodesDevice(strconv.Itoa(i), gpu.Nodes))
		byUUID = append(byUUID, nodesDevice(gpu.UUID, gpu.Nodes))
	}
	spec.Devices = append(spec.Devices, byUUID...)
	spec.Devices = append(spec.Devices, nodesDevice(allDevices, all))
	return spec, nil
}

func nodesDevice(name string, list []discover.DeviceNode) specs.Device {
	return specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{DeviceNodes: nodes(list)}}
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
