package cdi

import (
	"os"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// nvidiaMajor is the one major that Linux' list of devices gives to NVIDIA
// (Documentation/admin-guide/devices.txt). All others that a spec names are
// allocated when a module loads: nvidia-uvm, nvidia-caps, InfiniBand (beyond its
// first 32 devices), rdma_cm's minor.
const nvidiaMajor = 195

// node is a device node as a spec names it. Type, mode and permissions are
// always there: without them crun, in a user namespace, makes a node of mode
// 000. Major and minor are left out where they may change; the engine then
// stats the node when the container starts.
func node(n discover.DeviceNode) *specs.DeviceNode {
	mode := os.FileMode(n.Mode & 0o777)
	d := &specs.DeviceNode{Path: n.Path, Type: "c", FileMode: &mode, Permissions: "rw"}
	if n.Major == nvidiaMajor && n.Minor <= 255 {
		d.Major, d.Minor = int64(n.Major), int64(n.Minor)
	}
	if n.UID != 0 {
		d.UID = &n.UID
	}
	if n.GID != 0 {
		d.GID = &n.GID
	}
	return d
}

// nodes are several of them, each path once.
func nodes(list []discover.DeviceNode) []*specs.DeviceNode {
	var out []*specs.DeviceNode
	seen := map[string]bool{}
	for _, n := range list {
		if !seen[n.Path] {
			seen[n.Path] = true
			out = append(out, node(n))
		}
	}
	return out
}
