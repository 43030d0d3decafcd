package allocate

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// podResourcesSocket is where the kubelet listens, on the node.
const podResourcesSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// podResourcesTimeout bounds the whole conversation.
const podResourcesTimeout = 5 * time.Second

// PodResources asks the kubelet what the pod's containers were given. It needs
// the kubelet's socket in the container (a hostPath volume, for root alone), and
// POD_NAME and POD_NAMESPACE in the environment (downward API). It is the one
// source that tells an init container what the main container has: the kubelet
// lists main containers already, and init containers never.
type PodResources struct{ Socket string }

// Name is "podresources".
func (PodResources) Name() string { return "podresources" }

// Ask asks the kubelet.
func (s PodResources) Ask(p Pod) (f Finding) {
	quiet := func(format string, args ...any) Finding {
		f.GPUs = silent(format, args...)
		f.NICs = f.GPUs
		return f
	}
	if !p.Root.Live() {
		return quiet("the kubelet is asked on this machine alone, not below %s", p.Root.Dir())
	}
	if _, err := os.Stat(s.Socket); err != nil {
		return quiet("no kubelet's socket %s", s.Socket)
	}
	name, namespace := p.getenv("POD_NAME"), p.getenv("POD_NAMESPACE")
	if name == "" || namespace == "" {
		return quiet("POD_NAME and POD_NAMESPACE are not set, so which of the kubelet's pods this is is not known")
	}
	pod, err := askKubelet(s.Socket, name, namespace, podResourcesTimeout)
	if err != nil {
		f.Err = fmt.Errorf("kubelet at %s: %w", s.Socket, err)
		return f
	}
	f.GPUs, f.NICs, f.Err = pod.said(p)
	return f
}

// podResources, containerResources and so on are what PodResources v1 tells of a
// pod, as far as it is of use here.
type podResources struct {
	name, namespace string
	containers      []containerResources
}

type containerResources struct {
	name    string
	devices []containerDevices
	claims  []claimed
}

type containerDevices struct {
	resource string
	ids      []string
}

func (pod podResources) said(p Pod) (gpus, nics Said, err error) {
	who := "pod " + pod.namespace + "/" + pod.name
	var given *collection
	var with []string
	for _, c := range pod.containers {
		if p.Container != "" && c.name != p.Container {
			continue
		}
		found := newCollection()
		if err := c.collect(p, found); err != nil {
			return gpus, nics, fmt.Errorf("%s, container %s: %w", who, c.name, err)
		}
		if len(found.gpus)+len(found.nics)+len(found.unknown) > 0 {
			given = found
			with = append(with, c.name)
		}
	}
	if len(with) > 1 {
		return gpus, nics, fmt.Errorf("%s has devices in several containers: --container NAME says whose to write: %s", who, strings.Join(with, ", "))
	}
	if p.Container != "" && !slices.ContainsFunc(pod.containers, func(c containerResources) bool { return c.name == p.Container }) {
		return gpus, nics, fmt.Errorf("%s has no container %q; the kubelet lists no init containers", who, p.Container)
	}
	if given == nil {
		quiet := silent("kubelet: no GPU and no NIC for %s", who)
		return quiet, quiet, nil
	}
	gpus, nics = draSaid(p.Host, given, "kubelet: "+who+", container "+with[0])
	return gpus, nics, nil
}

// collect finds the devices among those of the host.
func (c containerResources) collect(p Pod, found *collection) error {
	for _, d := range c.devices {
		for _, id := range d.ids {
			if err := collectDevice(p, d.resource, id, found); err != nil {
				return fmt.Errorf("%s: %w", d.resource, err)
			}
		}
	}
	for _, claim := range c.claims {
		if err := claim.add(p.Host, found); err != nil {
			return err
		}
	}
	return nil
}

// collectDevice goes by the ids that device plugins use: NVIDIA's has UUIDs,
// "UUID::N" for a share of one; GKE's the node's name, "nvidia0", with
// "/gi1" for a GPU instance or "/vgpu0" for a share; the SR-IOV one PCI addresses.
func collectDevice(p Pod, resource, id string, found *collection) error {
	switch {
	case strings.HasPrefix(id, "GPU-"), strings.HasPrefix(id, "MIG-"):
		return found.addGPU(p.Host, id)
	case resource == "nvidia.com/gpu" && strings.HasPrefix(id, "nvidia"):
		return collectNode(p, id, found)
	case strings.HasPrefix(resource, "nvidia.com/gpu"), strings.HasPrefix(resource, "nvidia.com/mig-"):
		return fmt.Errorf("device id %q is no UUID: which GPU is meant is not known", id)
	case pciAddress(id) != "":
		if ok, err := isNIC(p, id); err != nil || !ok {
			return err
		}
		for _, i := range nicsAt(p.Host, pciAddress(id)) {
			found.nics[i] = true
		}
	}
	return nil // something else's device
}

// collectNode takes GKE's ids.
func collectNode(p Pod, id string, found *collection) error {
	node, part, _ := strings.Cut(id, "/")
	matched := false
	for i, g := range p.Host.GPUs {
		if "/dev/"+node != gpuNodePath(g.Minor) || g.Excluded {
			continue
		}
		if gi, ok := strings.CutPrefix(part, "gi"); ok {
			gi, _, _ = strings.Cut(gi, "/")
			if g.MIG == nil || fmt.Sprint(g.MIG.GI) != gi {
				continue
			}
		} else if g.MIG != nil {
			continue
		}
		found.gpus[i], matched = true, true
	}
	if !matched {
		return fmt.Errorf("device id %q is none of this host's GPUs: %s", id, names(p.Host.GPUs, gpuName))
	}
	return nil
}

func gpuNodePath(minor int) string { return fmt.Sprintf("/dev/nvidia%d", minor) }
