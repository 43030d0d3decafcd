package discover

import "net/netip"

// Devices is a set of GPUs and NICs: a host's whole inventory, or an allocation,
// which is a subset of one. GPUs are in the order of their PCI addresses, NICs
// in the order of their names (natural order: nic2 before nic10).
type Devices struct {
	GPUs []GPU `json:"gpus"`
	NICs []NIC `json:"nics"`
}

// GPU is an NVIDIA GPU as /proc/driver/nvidia/gpus describes it, or a MIG device,
// which is a part of one. A GPU that is cut into MIG devices cannot be used as a
// whole: the inventory has its MIG devices instead.
type GPU struct {
	// Name is the GPU's index on this host, in PCI order: "0"; a MIG device's is
	// that and its own: "0:1". An excluded GPU has none, as for NVML, and is
	// called by its PCI address.
	Name string `json:"name"`
	// Index is the same as a number; -1 for an excluded GPU.
	Index int `json:"index"`
	// UUID is "GPU-" and a UUID. A MIG device's is "MIG-" and a UUID, which NVML
	// alone knows; else "MIG-GPU-UUID/GI/CI", as CUDA takes it, too. It is empty
	// where /proc/driver/nvidia cannot be read.
	UUID string `json:"uuid"`
	// Minor is the minor number of its device node, which is also the number in
	// the node's name; it need not be the index.
	Minor int `json:"minor"`
	// PCIAddress is the PCI function, as sysfs spells it: "0000:8f:00.0". A MIG
	// device's is its GPU's. It is empty where it is not known.
	PCIAddress string `json:"pciAddress"`
	// Model is the product name: "NVIDIA H200".
	Model string `json:"model"`
	// Excluded GPUs are kept from use by the driver (NVreg_ExcludedGpus).
	Excluded bool `json:"excluded,omitempty"`
	// NUMANode is -1 where the firmware says nothing.
	NUMANode int `json:"numaNode"`
	// PCIPath is the chain of PCI functions from the root port to the device,
	// which is its last, below the host bridge PCIRoot.
	PCIRoot string   `json:"pcieRoot,omitempty"`
	PCIPath []string `json:"pciPath,omitempty"`
	// Nodes are this GPU's own device nodes: /dev/nvidiaN, and a MIG device's
	// /dev/nvidia-caps/nvidia-capN. There are none in a container that was not
	// given this GPU.
	Nodes []DeviceNode `json:"nodes"`
	// DRM are the nodes for graphics, those that exist.
	DRM []DRMNode `json:"drm,omitempty"`
	// MIG is nil for a whole GPU.
	MIG *MIG `json:"mig,omitempty"`
}

// MIG says which part of a GPU a MIG device is.
type MIG struct {
	// Parent is the UUID of the GPU.
	Parent string `json:"parent"`
	// Index counts the GPU's MIG devices, in the order of their ids.
	Index int `json:"index"`
	// GI and CI are the ids of the GPU instance and of the compute instance in it.
	GI int `json:"gpuInstance"`
	CI int `json:"computeInstance"`
}

// DRMNode is /dev/dri/cardN or /dev/dri/renderDN.
type DRMNode struct {
	DeviceNode
	// ByPath is the link by which programs find it from the PCI address, such as
	// "/dev/dri/by-path/pci-0000:07:00.0-render"; empty where there is none.
	ByPath string `json:"byPath,omitempty"`
}

// NICKind says what a network interface is to the PCI function beneath it.
type NICKind string

const (
	// PF is a physical function, or any hardware NIC that is no virtual function.
	PF NICKind = "pf"
	// VF is an SR-IOV virtual function.
	VF NICKind = "vf"
	// Virtual is an interface with no device beneath it (veth, macvlan, bridge).
	Virtual NICKind = "virtual"
)

// NIC is a network interface, an RDMA device, or, most often, both on one PCI
// function.
type NIC struct {
	// Name is the interface's name, or the RDMA device's where there is no interface.
	Name string `json:"name"`
	// Identity tells this NIC from all others whatever its name: see package link.
	Identity string `json:"identity"`
	// Interface is the network interface's name; empty for an RDMA device
	// without one, and for a NIC whose interface is in another network namespace.
	Interface string `json:"interface,omitempty"`
	// Index is the interface's index in its network namespace.
	Index int `json:"ifindex,omitempty"`
	// PCIAddress is the PCI function beneath; empty for a virtual NIC.
	PCIAddress string  `json:"pciAddress,omitempty"`
	Kind       NICKind `json:"kind"`
	// LinkKind is the kernel's name for the kind of a virtual link ("veth").
	LinkKind string `json:"linkKind,omitempty"`
	// PF is the PCI address of a VF's physical function.
	PF string `json:"pf,omitempty"`
	// MAC is the address in use: "06:c4:a0:25:7e:01".
	MAC string `json:"mac,omitempty"`
	// MTU in bytes.
	MTU int `json:"mtu,omitempty"`
	// State is the interface's operstate: "up", "down", "unknown" ...
	State string `json:"state,omitempty"`
	// Driver is the kernel driver bound to the device beneath.
	Driver string `json:"driver,omitempty"`
	// PCI ids as sysfs spells them ("0x15b3").
	Vendor string `json:"pciVendor,omitempty"`
	Device string `json:"pciDevice,omitempty"`
	// NUMANode is -1 where the firmware says nothing.
	NUMANode int      `json:"numaNode"`
	PCIRoot  string   `json:"pcieRoot,omitempty"`
	PCIPath  []string `json:"pciPath,omitempty"`
	// Addresses are the interface's, in the kernel's order.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// DefaultRoute says why this NIC must stay where it is: it carries the
	// host's default route, or something stacked on it does ("default route",
	// "beneath bond0"). Empty for a NIC that may be given away.
	DefaultRoute string `json:"defaultRoute,omitempty"`
	// RDMA are the RDMA devices of the same function.
	RDMA []RDMADevice `json:"rdma,omitempty"`
}

// RDMADevice is an entry of /sys/class/infiniband.
type RDMADevice struct {
	// Name is the RDMA device's: "mlx5_0".
	Name string `json:"name"`
	// NodeGUID as sysfs spells it: "f452:1403:0008:6a20".
	NodeGUID string `json:"nodeGUID,omitempty"`
	// NodeType is "CA", "RNIC" ...
	NodeType string     `json:"nodeType,omitempty"`
	Ports    []RDMAPort `json:"ports,omitempty"`
	// The character devices, as far as they are below the root's /dev; UMAD and
	// ISSM have one for each port that has any.
	Uverbs *DeviceNode  `json:"uverbs,omitempty"`
	UMAD   []DeviceNode `json:"umad,omitempty"`
	ISSM   []DeviceNode `json:"issm,omitempty"`
}

// RDMAPort is one port of an RDMA device; ports count from 1.
type RDMAPort struct {
	Number int `json:"number"`
	// LinkLayer is "InfiniBand" or "Ethernet" (RoCE).
	LinkLayer string `json:"linkLayer"`
	// State is "ACTIVE", "DOWN" ...
	State string `json:"state,omitempty"`
	// Interface is the netdev of the port's first GID entry.
	Interface string `json:"interface,omitempty"`
}

// DeviceNode is a character device.
type DeviceNode struct {
	// Path is absolute, below the root that was read: "/dev/nvidia0".
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// Mode holds the permission bits alone.
	Mode uint32 `json:"mode"`
	UID  uint32 `json:"uid,omitempty"`
	GID  uint32 `json:"gid,omitempty"`
}

// Host is what a host has: its devices, and what several of them share.
type Host struct {
	Devices
	// DriverVersion is the NVIDIA kernel driver's ("580.159.04"); empty without one.
	DriverVersion string `json:"driverVersion,omitempty"`
	// ControlNodes are the nodes that every GPU container needs: nvidiactl,
	// nvidia-uvm, nvidia-uvm-tools, nvidia-modeset; those that exist.
	ControlNodes []DeviceNode `json:"controlNodes,omitempty"`
	// RDMACM is the RDMA connection manager's node, shared by all RDMA devices.
	RDMACM *DeviceNode `json:"rdmaCM,omitempty"`
	// PCI are the PCI functions and bridges, by address.
	PCI []PCIDevice `json:"pci,omitempty"`
	// NUMANodes are the host's NUMA nodes and their CPUs ("0-55,112-167").
	NUMANodes []NUMANode `json:"numaNodes,omitempty"`
	// Problems are the devices that could not be read fully.
	Problems []Problem `json:"problems,omitempty"`
}

// PCIDevice is a PCI function.
type PCIDevice struct {
	Address string `json:"address"`
	// Root is the host bridge: "pci0000:8d".
	Root string `json:"root"`
	// Path are the bridges between the host bridge and this function, outermost
	// first; the function itself is not in it.
	Path []string `json:"path,omitempty"`
	// Class, Vendor and Device as sysfs spells them ("0x030200").
	Class    string `json:"class"`
	Vendor   string `json:"vendor"`
	Device   string `json:"device"`
	Driver   string `json:"driver,omitempty"`
	NUMANode int    `json:"numaNode"`
}

// NUMANode is a NUMA node with its CPUs in the kernel's list format.
type NUMANode struct {
	ID   int    `json:"id"`
	CPUs string `json:"cpus"`
}

// Problem is a device that could not be read fully, with what is wrong.
type Problem struct {
	// Device names it: a PCI address or an interface name.
	Device string `json:"device"`
	Text   string `json:"problem"`
}
