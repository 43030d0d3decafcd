package main

import (
	"path"
	"strings"

	"podrail/pkg/cdi"
	"podrail/pkg/discover"
)

// topologyFile is where NVIDIA's nvidia-topologyd describes the PCI tree of a
// virtual machine, and where NCCL looks when nothing else is said.
const topologyFile = "/var/run/nvidia-topologyd/virtualTopology.xml"

// addNCCL adds what NCCL must be told. What --env says counts more.
func (p *program) addNCCL(root *discover.Root, given discover.Devices, o *cdi.Options) {
	var env []string
	if hca := ncclHCA(given.NICs); hca != "" {
		env = append(env, "NCCL_IB_HCA="+hca)
	} else {
		p.log.Info("no NCCL_IB_HCA: none of the NICs has an RDMA device")
	}
	if file := ncclTopology(root); file != "" {
		env = append(env, "NCCL_TOPO_FILE="+file)
		o.Mounts = append(o.Mounts, cdi.Mount{Host: file, Container: file, Options: []string{"ro", "nosuid", "nodev", "bind"}})
	} else if virtualPCI(root, given) {
		p.log.Warn("PCI is virtualised here and hides how near devices are: NCCL will guess; "+
			"a file of the real topology can be named in /etc/nccl.conf (NCCL_TOPO_FILE=...)", "looked_at", topologyFile)
	}
	o.Env = append(env, o.Env...)
}

// ncclHCA names RDMA devices exactly: without the "=" mlx5_1 means mlx5_10, too.
func ncclHCA(nics []discover.NIC) string {
	var names []string
	for _, n := range nics {
		for _, r := range n.RDMA {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "=" + strings.Join(names, ",")
}

// ncclTopology is the file that the host's own configuration of NCCL names, or
// that nvidia-topologyd wrote; empty if there is none.
func ncclTopology(root *discover.Root) string {
	conf, _ := root.ReadFile("/etc/nccl.conf")
	files := []string{}
	for line := range strings.Lines(string(conf)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && name == "NCCL_TOPO_FILE" {
			files = append(files, strings.TrimSpace(value))
		}
	}
	for _, file := range append(files, topologyFile) {
		if path.IsAbs(file) && path.Clean(file) == file && !strings.ContainsAny(file, ":\n") && root.Exists(file) {
			return file
		}
	}
	return ""
}

// virtualPCI says that GPUs are shown on the root bus or right below a root port,
// as hypervisors do, so that no path says what they share.
func virtualPCI(root *discover.Root, given discover.Devices) bool {
	cpu, _ := root.ReadFile("/proc/cpuinfo")
	if !strings.Contains(string(cpu), " hypervisor") {
		return false
	}
	for _, g := range given.GPUs {
		if len(g.PCIPath) < 3 {
			return true
		}
	}
	return false
}
