package allocate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"podrail/pkg/discover"

	"golang.org/x/sys/unix"
)

// Container goes by what this container can use: device nodes that open, where
// the device cgroup refuses others, and NICs in a network namespace that is not
// the host's. In a privileged container every node opens: it then says nothing
// of GPUs.
type Container struct{}

// Name is "container".
func (Container) Name() string { return "container" }

// Majors of NVIDIA's GPUs and of InfiniBand (Documentation/admin-guide/devices.txt),
// each with a minor that no device has.
const (
	gpuMajor, unusedGPU   = 195, 253
	rdmaMajor, unusedRDMA = 231, 191
)

// Ask opens device nodes.
func (Container) Ask(p Pod) (f Finding) {
	if !p.Root.Live() {
		f.GPUs = silent("device nodes are opened on this machine alone, not below %s", p.Root.Dir())
		f.NICs = f.GPUs
		return f
	}
	f.GPUs, f.Err = openGPUs(p.Host, unix.Mkdev(gpuMajor, unusedGPU))
	if f.Err == nil {
		f.NICs, f.Err = containerNICs(p.Root, p.Host, unix.Mkdev(rdmaMajor, unusedRDMA))
	}
	return f
}

// openGPUs are the host's GPUs whose nodes all open, if it is certain that the
// device cgroup would refuse others.
func openGPUs(host *discover.Host, unused uint64) (Said, error) {
	cgroup := probe(unused)
	if cgroup.open {
		return silent("%s", cgroup.how), nil
	}
	given := newCollection()
	for i, g := range host.GPUs {
		if g.Excluded || len(g.Nodes) == 0 {
			continue
		}
		switch err := openAll(g.Nodes); {
		case err == nil:
			given.gpus[i] = true
		case errors.Is(err, unix.EPERM):
			// Had this been allowed for all, it would have been for this one.
			if !cgroup.fenced {
				cgroup = fence{fenced: true, how: "the device cgroup refuses " + g.Nodes[0].Path}
			}
		case cgroup.fenced:
			return Said{}, fmt.Errorf("GPU %s (%s) is in this container, but cannot be opened: %w", g.Name, g.UUID, err)
		}
	}
	if !cgroup.fenced {
		return silent("%s", cgroup.how), nil
	}
	return given.saidGPUs(host, Proves, "device nodes that open; "+cgroup.how), nil
}

// containerNICs are those whose interface is in this container's own network
// namespace, and those whose RDMA device opens where others would not. Virtual
// interfaces and the one of the default route are the pod's network, not devices.
func containerNICs(root *discover.Root, host *discover.Host, unused uint64) (Said, error) {
	namespace := ownNetns(root)
	cgroup := probe(unused)
	given := newCollection()
	for i, n := range host.NICs {
		if n.PCIAddress == "" && len(n.RDMA) == 0 || whyNotNIC(n) != "" {
			continue
		}
		opens := false
		if nodes := rdmaNodes(n); cgroup.fenced && len(nodes) > 0 && probe(unix.Mkdev(nodes[0].Major, unix.Minor(unused))).fenced {
			opens = openAll(nodes) == nil
		}
		given.nics[i] = opens || namespace.own && n.Interface != ""
	}
	var how []string
	if namespace.own {
		how = append(how, namespace.how)
	}
	if cgroup.fenced {
		how = append(how, "RDMA device nodes that open; "+cgroup.how)
	}
	said := given.saidNICs(host, Proves, strings.Join(how, "; "))
	if !namespace.own && !cgroup.fenced || said.Count == 0 && !cgroup.fenced {
		// An RDMA device without an interface could be anybody's.
		return silent("%s; %s", namespace.how, cgroup.how), nil
	}
	return said, nil
}

// rdmaNodes are the nodes by which a NIC's RDMA devices are used.
func rdmaNodes(n discover.NIC) (nodes []discover.DeviceNode) {
	for _, r := range n.RDMA {
		if r.Uverbs != nil {
			nodes = append(nodes, *r.Uverbs)
		}
	}
	return nodes
}

// openAll opens nodes, one after the other, and closes them again.
func openAll(nodes []discover.DeviceNode) error {
	for _, n := range nodes {
		flags := unix.O_RDWR
		if strings.HasPrefix(n.Path, "/dev/nvidia-caps/") {
			flags = unix.O_RDONLY // that is their mode, and all that they are for
		}
		fd, err := unix.Open(n.Path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: n.Path, Err: err}
		}
		unix.Close(fd)
	}
	return nil
}

// fence is what is known of the device cgroup.
type fence struct {
	// fenced: it refuses what it was not told to allow. open: it does not.
	// Neither: that could not be found out.
	fenced, open bool
	how          string
}

// probe opens a node of a device that does not exist. The device cgroup refuses
// it with EPERM before anything else looks; where it does not, there is no such
// device (ENXIO, ENODEV). Runtimes allow making nodes of any device, with
// CAP_MKNOD, which is in their default set.
func probe(device uint64) fence {
	name := fmt.Sprintf("%d:%d", unix.Major(device), unix.Minor(device))
	why := "no directory for device nodes"
	for _, dir := range []string{"/dev", "/run", "/tmp"} {
		err := openNode(filepath.Join(dir, ".cdi-gen-"+strconv.Itoa(os.Getpid())), device)
		switch {
		case errors.Is(err, errMknod):
			why = err.Error()
		case errors.Is(err, unix.EPERM):
			return fence{fenced: true, how: "the device cgroup refuses others (" + name + ")"}
		case errors.Is(err, unix.EACCES): // the file system is mounted with nodev
			why = err.Error()
		default:
			return fence{open: true, how: "the device cgroup refuses nothing (" + name + "): this container is privileged, or none"}
		}
	}
	return fence{how: "whether the device cgroup refuses other devices cannot be tried: " + why}
}

var errMknod = errors.New("needs root with CAP_MKNOD (a container's default)")

// openNode makes a node, opens it and removes it again.
func openNode(path string, device uint64) error {
	os.Remove(path) // a killed predecessor's with the same process number
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(device)); err != nil {
		return fmt.Errorf("%w: %w", errMknod, &os.PathError{Op: "mknod", Path: path, Err: err})
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	os.Remove(path)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// netns is what is known of the network namespace.
type netns struct {
	own bool
	how string
}

// ownNetns says whether the network namespace is the container's or its pod's.
// Of the sysctls in net/core all but a few are there once for the machine, in its
// first network namespace (net/core/sysctl_net_core.c). In a pod with the node's
// network, where that is itself a container's (kind), the kubelet says so.
func ownNetns(root *discover.Root) netns {
	switch {
	case !root.Exists("/proc/sys/net/core/somaxconn"):
		return netns{how: "which network namespace this is cannot be told: /proc/sys/net/core is missing"}
	case root.Exists("/proc/sys/net/core/netdev_max_backlog"):
		return netns{how: "this is the machine's own network namespace"}
	}
	hosts, _ := root.ReadFile("/etc/hosts")
	if slices.ContainsFunc(strings.Split(string(hosts), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "#") && strings.Contains(line, "(host network)")
	}) {
		return netns{how: "this is the node's network namespace (/etc/hosts)"}
	}
	return netns{own: true, how: "NICs in this pod's network namespace"}
}
