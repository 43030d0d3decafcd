// Package resourceslice shows a host's devices as the DRA drivers of NVIDIA
// (gpu.nvidia.com) and DraNet (dra.net) publish them in Kubernetes: as
// ResourceSlices of resource.k8s.io/v1, with their names for drivers, devices
// and attributes. It knows what procfs and sysfs know; of NVIDIA's attributes
// those that NVML alone knows (brand, architecture, CUDA versions, memory) are
// not there.
//
//	for _, slice := range resourceslice.Make(host, "node-1") {
//		data, err := yaml.Marshal(slice)
//	}
package resourceslice

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"podrail/pkg/discover"
)

// The drivers.
const (
	GPUDriver = "gpu.nvidia.com"
	NICDriver = "dra.net"
)

// Attributes that Kubernetes has made a standard.
const (
	PCIeRoot = "resource.kubernetes.io/pcieRoot"
	PCIBusID = "resource.kubernetes.io/pciBusID"
	NUMANode = "resource.kubernetes.io/numaNode"
)

// most is how many devices a slice can hold.
const most = 128

// Slice is a ResourceSlice.
type Slice struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       Spec     `json:"spec"`
}

// Metadata is what an object is called.
type Metadata struct {
	Name string `json:"name"`
}

// Spec is a part of a pool: a node's devices of one driver.
type Spec struct {
	Driver   string   `json:"driver"`
	NodeName string   `json:"nodeName"`
	Pool     Pool     `json:"pool"`
	Devices  []Device `json:"devices"`
}

// Pool tells how many slices belong together.
type Pool struct {
	Name               string `json:"name"`
	Generation         int64  `json:"generation"`
	ResourceSliceCount int64  `json:"resourceSliceCount"`
}

// Device is a device with what a claim can select by.
type Device struct {
	Name       string               `json:"name"`
	Attributes map[string]Attribute `json:"attributes,omitempty"`
	// GPU or NIC is the device in the inventory.
	GPU *discover.GPU `json:"-"`
	NIC *discover.NIC `json:"-"`
}

// Attribute has one of four types of value.
type Attribute struct {
	Bool    *bool   `json:"bool,omitempty"`
	Int     *int64  `json:"int,omitempty"`
	String  *string `json:"string,omitempty"`
	Version *string `json:"version,omitempty"`
}

// Make makes the slices of a host's node: the GPUs', then the NICs'. GPUs that
// the driver must not use, NICs that the host needs, and virtual links without
// RDMA are not for claims and not in them.
func Make(host *discover.Host, node string) []Slice {
	return append(makeSlices(GPUDriver, node, gpus(host)), makeSlices(NICDriver, node, nics(host))...)
}

func makeSlices(driver, node string, devices []Device) []Slice {
	var out []Slice
	chunks := slices.Collect(slices.Chunk(devices, most))
	for i, chunk := range chunks {
		name := node + "-" + driver
		if i > 0 {
			name += "-" + strconv.Itoa(i)
		}
		out = append(out, Slice{
			APIVersion: "resource.k8s.io/v1",
			Kind:       "ResourceSlice",
			Metadata:   Metadata{Name: name},
			Spec: Spec{
				Driver:   driver,
				NodeName: node,
				Pool:     Pool{Name: node, Generation: 1, ResourceSliceCount: int64(len(chunks))},
				Devices:  chunk,
			},
		})
	}
	return out
}

// gpus are in the order of their indices: allocators take the first that fit.
func gpus(host *discover.Host) []Device {
	var out []Device
	for i := range host.GPUs {
		g := &host.GPUs[i]
		if g.Excluded {
			continue
		}
		a := attributes{}
		a.set("type", "gpu")
		a.set("uuid", g.UUID)
		a.set("productName", g.Model)
		a.integer("index", g.Index)
		a.integer("minor", g.Minor)
		a.version("driverVersion", host.DriverVersion)
		a.set("pcieBusID", g.PCIAddress)
		a.standard(g.PCIAddress, g.PCIRoot, g.NUMANode)
		name := fmt.Sprintf("gpu-%d", g.Minor)
		if g.MIG != nil {
			a.set("type", "mig")
			a.set("parentUUID", g.MIG.Parent)
			name = fmt.Sprintf("gpu-%d-mig-%d-%d", g.Minor, g.MIG.GI, g.MIG.CI)
		}
		out = append(out, Device{Name: name, Attributes: a, GPU: g})
	}
	return out
}

func nics(host *discover.Host) []Device {
	functions := map[string]int{}
	for _, n := range host.NICs {
		if n.PF != "" {
			functions[n.PF]++
		}
	}
	var out []Device
	used := map[string]bool{}
	for i := range host.NICs {
		n := &host.NICs[i]
		if n.DefaultRoute != "" || n.PCIAddress == "" && len(n.RDMA) == 0 {
			continue
		}
		a := attributes{}
		a.set("dra.net/ifName", n.Interface)
		a.set("dra.net/mac", n.MAC)
		if n.MTU > 0 {
			a.integer("dra.net/mtu", n.MTU)
		}
		a.set("dra.net/state", n.State)
		a.set("dra.net/type", cmp.Or(n.LinkKind, "device"))
		a.set("dra.net/encapsulation", encapsulation(*n))
		a.set("dra.net/ipv4", addresses(*n, true))
		a.set("dra.net/ipv6", addresses(*n, false))
		// A claim that asks for an attribute which a device lacks fails.
		a.boolean("dra.net/rdma", len(n.RDMA) > 0)
		a.boolean("dra.net/virtual", n.PCIAddress == "")
		vfs := functions[n.PCIAddress]
		a.boolean("dra.net/sriov", vfs > 0)
		if vfs > 0 {
			a.integer("dra.net/sriovVfs", vfs)
		}
		a.set("dra.net/pciVendor", vendors[n.Vendor])
		if n.NUMANode >= 0 {
			a.integer("dra.net/numaNode", n.NUMANode)
		}
		a.standard(n.PCIAddress, n.PCIRoot, n.NUMANode)
		out = append(out, Device{Name: deviceName(n.Name, used), Attributes: a, NIC: n})
	}
	return out
}

// vendors are names of the PCI ID database, which DraNet publishes.
var vendors = map[string]string{
	"0x14e4": "Broadcom Inc. and subsidiaries",
	"0x15b3": "Mellanox Technologies",
	"0x1ae0": "Google, Inc.",
	"0x1af4": "Red Hat, Inc.",
	"0x1d0f": "Amazon.com, Inc.",
	"0x8086": "Intel Corporation",
}

func encapsulation(n discover.NIC) string {
	switch {
	case n.Interface == "":
		return ""
	case len(n.MAC) == len("00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22:33"):
		return "infiniband"
	}
	return "ether"
}

// addresses are a NIC's global ones, as many as a value can hold.
func addresses(n discover.NIC, v4 bool) string {
	var out []string
	for _, a := range n.Addresses {
		if a.Addr().Is4() == v4 && a.Addr().IsGlobalUnicast() {
			out = append(out, a.Addr().String())
		}
	}
	for len(strings.Join(out, ",")) > mostValue {
		out = out[:len(out)-1]
	}
	return strings.Join(out, ",")
}

var notLabel = regexp.MustCompile(`[^a-z0-9-]`)

// deviceName is a NIC's name where Kubernetes takes it for a device's (a DNS
// label), else one like it.
func deviceName(name string, used map[string]bool) string {
	label := notLabel.ReplaceAllString(strings.ToLower(name), "-")
	if label != name || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
		label = "normalized-" + strings.Trim(label, "-")
	}
	free := label
	for i := 1; used[free]; i++ {
		free = label + "-" + strconv.Itoa(i)
	}
	used[free] = true
	return free
}

// mostValue is how long a value can be.
const mostValue = 64

// attributes leave out what is not known.
type attributes map[string]Attribute

func (a attributes) set(name, value string) {
	if len(value) > mostValue {
		value = value[:mostValue]
	}
	if value != "" {
		a[name] = Attribute{String: &value}
	}
}

func (a attributes) integer(name string, value int) {
	v := int64(value)
	a[name] = Attribute{Int: &v}
}

func (a attributes) boolean(name string, value bool) { a[name] = Attribute{Bool: &value} }

// version makes a semantic version of a driver's: 580.82.07 is 580.82.7.
func (a attributes) version(name, value string) {
	parts := strings.Split(value, ".")
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil {
			return
		}
		parts[i] = strconv.Itoa(n)
	}
	text := strings.Join(parts[:3], ".")
	a[name] = Attribute{Version: &text}
}

func (a attributes) standard(address, root string, node int) {
	a.set(PCIBusID, address)
	a.set(PCIeRoot, root)
	if node >= 0 {
		a.integer(NUMANode, node)
	}
}

// NodeName is what a host calls itself, as a node's name must look.
func NodeName(root *discover.Root) string {
	for _, file := range []string{"/proc/sys/kernel/hostname", "/etc/hostname"} {
		data, err := root.ReadFile(file)
		name := strings.ToLower(strings.TrimSpace(string(data)))
		if err == nil && nodeName.MatchString(name) && len(name) <= 200 {
			return name
		}
	}
	return "localhost"
}

var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
