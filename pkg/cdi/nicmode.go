package cdi

import (
	"bytes"
	"fmt"
	"os"

	"podrail/pkg/discover"
)

// NICMode says how a NIC reaches a container.
type NICMode string

const (
	// NICAuto is NICHook or NICDevices, by DetectNICMode.
	NICAuto NICMode = "auto"
	// NICHook has netdev-hook move the interface into the container.
	NICHook NICMode = "hook"
	// NICNative has the OCI runtime move the interface (CDI 1.1.0's netDevices),
	// and the hook do the rest: addresses, routes, the RDMA device.
	NICNative NICMode = "native"
	// NICDevices gives the container device nodes alone.
	NICDevices NICMode = "devices"
)

// ParseNICMode reads a mode's name.
func ParseNICMode(s string) (NICMode, error) {
	switch m := NICMode(s); m {
	case NICAuto, NICHook, NICNative, NICDevices:
		return m, nil
	}
	return "", fmt.Errorf("nic-mode %q: must be auto, hook, native or devices", s)
}

// DetectNICMode is NICDevices inside a pod or container that has a network
// namespace of its own: engines there share it (Ray starts Podman with
// --network=host), so a hook would have nothing to move and would be a
// root-run program in a volume. It is NICHook on a host, and where another
// root than this machine's is read.
func DetectNICMode(root *discover.Root) NICMode {
	if !root.Live() || initialNetns(root) || !inContainer(root) {
		return NICHook
	}
	return NICDevices
}

// initialNetns says whether this is the machine's first network namespace. Only
// there is the table that holds this sysctl (net/core/sysctl_net_core.c).
func initialNetns(root *discover.Root) bool {
	return root.Exists("/proc/sys/net/core/netdev_max_backlog")
}

// inContainer goes by what kubelet, Podman, CRI-O, Docker and containerd leave
// in a container. In a network namespace made by hand there is none of it.
func inContainer(root *discover.Root) bool {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" || root.Exists("/run/.containerenv") || root.Exists("/.dockerenv") {
		return true
	}
	cgroup, _ := root.ReadFile("/proc/1/cgroup")
	for _, hint := range []string{"kubepods", "libpod", "crio", "docker", "containerd"} {
		if bytes.Contains(cgroup, []byte(hint)) {
			return true
		}
	}
	return false
}
