package cdi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"podrail/internal/hookapi"
	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// unfit says how a spec of ours differs from the one that this host would get
// now, as far as the spec itself says what it was made for. Of somebody else's
// spec it says nothing. What is in the spec and would not be, the user may have
// added (--mount), so that is no difference.
func unfit(root *discover.Root, host *discover.Host, spec *specs.Spec) []string {
	if file := mountedAt(spec, containerLibraryDirs[0], "libcuda.so.1", "libnvidia-ml.so.1"); file != "" {
		return unfitGPUs(root, host, spec, file)
	}
	return unfitNICs(host, spec)
}

// otherDriver begins the message after which no more need be said of files.
const otherDriver = "is for driver "

// mountedAt is the file of the host that a spec mounts under one of the names.
// No other program's spec mounts the driver's libraries under their SONAMEs.
func mountedAt(spec *specs.Spec, dir string, names ...string) string {
	for _, m := range spec.ContainerEdits.Mounts {
		if path.Dir(m.ContainerPath) == dir && slices.Contains(names, path.Base(m.ContainerPath)) {
			return m.HostPath
		}
	}
	return ""
}

func unfitGPUs(root *discover.Root, host *discover.Host, spec *specs.Spec, library string) []string {
	_, version, _ := strings.Cut(path.Base(library), ".so.")
	wsl := strings.HasPrefix(library, wslLibraries)
	if !wsl && version != host.DriverVersion {
		return []string{fmt.Sprintf(otherDriver+"%s, and the kernel driver is %s", version, orNone(host.DriverVersion))}
	}
	given, gone := givenGPUs(host, spec)
	if len(gone) > 0 || len(given) == 0 {
		return gone
	}
	o := Options{
		Name:         namePrefix(spec),
		GPUKind:      spec.Kind,
		NICKind:      spec.Kind + "-nic",
		Capabilities: capabilitiesOf(spec),
		DriverRoot:   driverRootOf(root, host, library),
		LDCachePath:  ldcachePathOf(spec),
		NICMode:      NICDevices,
	}
	built, err := Build(root, host, discover.Devices{GPUs: given}, o)
	if err != nil {
		return []string{"cannot be made any more: " + err.Error()}
	}
	return differences(spec, &built.Specs[0].Spec)
}

func orNone(s string) string {
	if s == "" {
		return "not loaded"
	}
	return s
}

// namePrefix is the name that the spec was made with, from the device "all".
func namePrefix(spec *specs.Spec) string {
	for _, d := range spec.Devices {
		if name, ok := strings.CutSuffix(d.Name, "-"+allDevices); ok {
			return name
		}
	}
	return ""
}

// givenGPUs are the host's GPUs of the spec's UUIDs, or of its nodes where it has
// no UUIDs, and messages about those that are not there.
func givenGPUs(host *discover.Host, spec *specs.Spec) (given []discover.GPU, gone []string) {
	prefix := DeviceName(namePrefix(spec), "")
	find := func(what string, match func(discover.GPU) bool) {
		i := slices.IndexFunc(host.GPUs, match)
		if i < 0 {
			gone = append(gone, what+" is not on this host any more")
			return
		}
		given = append(given, host.GPUs[i])
	}
	for _, d := range spec.Devices {
		name := strings.TrimPrefix(d.Name, prefix)
		if strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
			find(name, func(g discover.GPU) bool { return deviceUUID(g) == name })
		}
	}
	if len(given)+len(gone) > 0 {
		return given, gone
	}
	for _, d := range spec.Devices {
		if strings.TrimPrefix(d.Name, prefix) == allDevices || len(d.ContainerEdits.DeviceNodes) == 0 {
			continue
		}
		node := d.ContainerEdits.DeviceNodes[0].Path
		find(node, func(g discover.GPU) bool { return len(g.Nodes) > 0 && g.Nodes[0].Path == node })
	}
	return given, gone
}

// capabilitiesOf are those whose marks a spec has.
func capabilitiesOf(spec *specs.Spec) []Capability {
	var out []Capability
	for _, mark := range []struct {
		c     Capability
		dir   string
		names []string
	}{
		{Compute, "/usr/lib64", []string{"libcuda.so.1"}},
		{Utility, "/usr/lib64", []string{"libnvidia-ml.so.1"}},
		{Video, "/usr/lib64", []string{"libnvcuvid.so.1"}},
		{Graphics, "/usr/lib64", []string{"libEGL_nvidia.so.0", "libd3d12.so"}},
		{Display, "/usr/lib64/xorg/modules/drivers", []string{"nvidia_drv.so"}},
		{NGX, "/usr/lib64", []string{"libnvidia-ngx.so.1"}},
		{Compat32, "/usr/lib/x86_64-linux-gnu", []string{"libcuda.so.1", "libnvidia-ml.so.1"}},
	} {
		if mountedAt(spec, mark.dir, mark.names...) != "" {
			out = append(out, mark.c)
		}
	}
	for _, c := range extraCapabilities {
		nodes := slices.ContainsFunc(spec.ContainerEdits.DeviceNodes, func(n *specs.DeviceNode) bool {
			return slices.ContainsFunc(extras[c].nodes, func(pattern string) bool {
				match, _ := path.Match(pattern, n.Path)
				return match
			})
		})
		sockets := slices.ContainsFunc(spec.ContainerEdits.Mounts, func(m *specs.Mount) bool {
			return slices.Contains(extras[c].sockets, m.HostPath)
		})
		if nodes || sockets {
			out = append(out, c)
		}
	}
	return out
}

// driverRootOf is the driver root below which the driver's library is found where
// the spec has it: "/", or a directory above the library.
func driverRootOf(root *discover.Root, host *discover.Host, library string) string {
	stem, _, _ := strings.Cut(path.Base(library), ".so")
	for dir := "/"; ; {
		if file, err := findLibrary(root, host, dir, stem+".so"); err == nil && file == library {
			return dir
		}
		rest := strings.TrimPrefix(strings.TrimPrefix(path.Dir(library), dir), "/")
		next, _, _ := strings.Cut(rest, "/")
		if next == "" {
			return "/"
		}
		dir = path.Join(dir, next)
	}
}

func ldcachePathOf(spec *specs.Spec) string {
	for _, h := range spec.ContainerEdits.Hooks {
		if len(h.Args) > 1 && h.Args[1] == LDCacheCommand {
			return h.Path
		}
	}
	return ""
}

// differences are what a spec would have now and has not, or has otherwise.
func differences(old, now *specs.Spec) []string {
	out := differentEdits("", old.ContainerEdits, now.ContainerEdits)
	for _, d := range now.Devices {
		i := slices.IndexFunc(old.Devices, func(o specs.Device) bool { return o.Name == d.Name })
		if i < 0 {
			out = append(out, "has no device "+d.Name)
			continue
		}
		out = append(out, differentEdits("device "+d.Name+": ", old.Devices[i].ContainerEdits, d.ContainerEdits)...)
	}
	for _, d := range old.Devices {
		if !slices.ContainsFunc(now.Devices, func(n specs.Device) bool { return n.Name == d.Name }) {
			out = append(out, "device "+d.Name+" would not be there")
		}
	}
	return out
}

func differentEdits(where string, old, now specs.ContainerEdits) []string {
	var out []string
	for _, n := range now.DeviceNodes {
		i := slices.IndexFunc(old.DeviceNodes, func(o *specs.DeviceNode) bool { return o.Path == n.Path })
		switch {
		case i < 0:
			out = append(out, where+"has not the node "+n.Path)
		case old.DeviceNodes[i].Major != n.Major || old.DeviceNodes[i].Minor != n.Minor:
			o := old.DeviceNodes[i]
			out = append(out, fmt.Sprintf("%snode %s is %d:%d here, %d:%d in the spec", where, n.Path, n.Major, n.Minor, o.Major, o.Minor))
		}
	}
	for _, o := range old.DeviceNodes {
		if !slices.ContainsFunc(now.DeviceNodes, func(n *specs.DeviceNode) bool { return o.Path == n.Path }) {
			out = append(out, where+"node "+o.Path+" would not be there")
		}
	}
	for _, m := range now.Mounts {
		i := slices.IndexFunc(old.Mounts, func(o *specs.Mount) bool { return o.ContainerPath == m.ContainerPath })
		switch {
		case i < 0:
			out = append(out, fmt.Sprintf("%shas not the mount %s", where, m.ContainerPath))
		case old.Mounts[i].HostPath != m.HostPath:
			out = append(out, fmt.Sprintf("%smount %s is of %s here, of %s in the spec", where, m.ContainerPath, m.HostPath, old.Mounts[i].HostPath))
		}
	}
	return out
}

// unfitNICs compares what the hook's arguments say of each NIC with the host. A
// NIC that is in a container now is not to be seen, but its PCI function is.
func unfitNICs(host *discover.Host, spec *specs.Spec) []string {
	var out []string
	for _, d := range spec.Devices {
		for _, h := range d.ContainerEdits.Hooks {
			for i, arg := range h.Args {
				if i == 0 || h.Args[i-1] != "--netdev" || !strings.HasPrefix(h.Args[0], "netdev-hook") {
					continue
				}
				want, err := hookapi.ParseNetdev(arg)
				if err != nil {
					out = append(out, fmt.Sprintf("hook argument %q: %v", arg, err))
					continue
				}
				if text := unfitNIC(host, want); text != "" && !slices.Contains(out, text) {
					out = append(out, text)
				}
			}
		}
	}
	return out
}

func unfitNIC(host *discover.Host, want hookapi.Netdev) string {
	i := slices.IndexFunc(host.NICs, func(n discover.NIC) bool { return n.Identity == want.ID })
	if i < 0 {
		_, address, _ := strings.Cut(want.ID, "pci/")
		address, _, _ = strings.Cut(address, "/")
		if slices.ContainsFunc(host.PCI, func(p discover.PCIDevice) bool { return p.Address == address }) {
			return ""
		}
		return fmt.Sprintf("NIC %s (%s) is not on this host any more", want.Name, want.ID)
	}
	nic := host.NICs[i]
	if nic.Interface != "" && nic.Name != want.Name {
		return fmt.Sprintf("NIC %s (%s) is called %s now", want.Name, want.ID, nic.Name)
	}
	var devices, nodes []string
	for _, r := range nic.RDMA {
		devices = append(devices, r.Name)
		if r.Uverbs != nil {
			nodes = append(nodes, path.Base(r.Uverbs.Path))
		}
		for _, n := range r.UMAD {
			nodes = append(nodes, path.Base(n.Path))
		}
	}
	if want.RDMA != "" && len(devices) > 0 && !slices.Contains(devices, want.RDMA) {
		return fmt.Sprintf("NIC %s has RDMA device %s here, %s in the spec", want.Name, strings.Join(devices, " and "), want.RDMA)
	}
	for _, n := range want.Nodes {
		if len(nodes) > 0 && !slices.Contains(nodes, n) {
			return fmt.Sprintf("NIC %s has %s here, %s in the spec", want.Name, strings.Join(nodes, " and "), strings.Join(want.Nodes, " and "))
		}
	}
	return ""
}
