package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"golang.org/x/sys/unix"
)

// extra is what a capability beside the driver has: nodes, and sockets or files
// of the host.
type extra struct {
	// nodes are paths of nodes, or of a node's beginning with a "*" after it.
	nodes   []string
	sockets []string
	// files are mounted, read-only, if the nodes are there.
	files []string
}

var extras = map[Capability]extra{
	GDRCopy:       {nodes: []string{"/dev/gdrdrv"}},
	GDS:           {nodes: []string{"/dev/nvidia-fs*"}, files: []string{"/etc/cufile.json", "/run/udev"}},
	IMEX:          {nodes: []string{"/dev/nvidia-caps-imex-channels/channel*"}},
	NVSwitch:      {nodes: []string{"/dev/nvidia-nvswitch*"}},
	Persistenced:  {sockets: []string{"/run/nvidia-persistenced/socket"}},
	FabricManager: {sockets: []string{"/run/nvidia-fabricmanager/socket"}},
	MPS:           {sockets: []string{"/tmp/nvidia-mps"}},
}

// extraEdits are for the capabilities asked for, whose absence is an error; and,
// inside a pod, for the rest as far as the pod was given it: such a node or
// socket is in a container only if somebody put it there.
func extraEdits(root *discover.Root, capabilities []Capability, pod bool) (specs.ContainerEdits, error) {
	var edits specs.ContainerEdits
	for _, c := range extraCapabilities {
		asked := slices.Contains(capabilities, c)
		if !asked && !pod {
			continue
		}
		found := extras[c].find(root, pod)
		if asked && len(found.DeviceNodes)+len(found.Mounts) == 0 {
			x := extras[c]
			return edits, fmt.Errorf("capability %s: there is no %s: leave it out, or load or start what makes it",
				c, strings.Join(append(x.nodes, x.sockets...), " and no "))
		}
		edits.DeviceNodes = append(edits.DeviceNodes, found.DeviceNodes...)
		edits.Mounts = append(edits.Mounts, found.Mounts...)
	}
	return edits, nil
}

func (x extra) find(root *discover.Root, mustOpen bool) (edits specs.ContainerEdits) {
	for _, pattern := range x.nodes {
		list, _ := root.DeviceNodes(pattern)
		for _, n := range list {
			if !mustOpen || opens(n.Path) {
				edits.DeviceNodes = append(edits.DeviceNodes, node(n))
			}
		}
	}
	for _, name := range x.sockets {
		if root.Exists(name) {
			// To connect to a socket is to write.
			edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: name, ContainerPath: name,
				Options: []string{"rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"}})
		}
	}
	for _, name := range x.files {
		if len(edits.DeviceNodes) > 0 && root.Exists(name) {
			edits.Mounts = append(edits.Mounts, readOnly(name, name))
		}
	}
	return edits
}

// opens says whether this process may use a node: the device cgroup of a pod
// refuses what the pod was not given. What is busy or has no device is refused
// by the driver, later.
func opens(name string) bool {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist)
	}
	unix.Close(fd)
	return true
}
