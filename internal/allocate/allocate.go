// Package allocate says which of a host's devices a pod or container was given,
// and how it knows.
//
// There are several sources of an answer, each in a file of its own: what the
// caller says ([All], [Lists], [File]) is one; the others are each a [Source]: what
// the kubelet, device plugins and the kernel tell a container. None of them
// guesses. A source answers for GPUs and for NICs separately.
//
//	answer, err := allocate.Lists(host, "0,1", "gpu0rdma0,gpu1rdma0")
//	fmt.Println(answer.How, answer.Devices.GPUs[0].UUID)
package allocate

import (
	"fmt"
	"strings"

	"podrail/pkg/discover"
)

// Answer is what a source says was given.
type Answer struct {
	// Devices is a subset of the inventory.
	Devices discover.Devices
	// GPUs and NICs say that the source answers for that kind, be it with none.
	GPUs, NICs bool
	// NamedGPUs and NamedNICs say that it names devices one by one, so that to
	// leave one out would be to ignore what was asked.
	NamedGPUs, NamedNICs bool
	// How the source knows: "--gpus 0,1".
	How string
	// LeftOut are devices of the host that "all" does not mean, and why.
	LeftOut []string
}

// ErrNone says that nothing tells what was given. The answer is then never "all".
type ErrNone struct {
	// Tried is what was looked at.
	Tried []string
}

func (e *ErrNone) Error() string {
	text := "nothing says which devices to write: pass --gpus LIST and --nics LIST (names, UUIDs or PCI addresses), " +
		"--allocation FILE, or --all for everything that this host has"
	if len(e.Tried) > 0 {
		text += "; looked at " + strings.Join(e.Tried, "; ")
	}
	return text
}

// All is everything of a host that can be given away.
func All(host *discover.Host) Answer {
	gpus, outGPUs := allGPUs(host)
	nics, outNICs := allNICs(host)
	return Answer{
		Devices: discover.Devices{GPUs: gpus, NICs: nics},
		GPUs:    true, NICs: true,
		How:     "--all",
		LeftOut: append(outGPUs, outNICs...),
	}
}

// allGPUs are the host's, without those that its driver is told not to use.
func allGPUs(host *discover.Host) (gpus []discover.GPU, leftOut []string) {
	for _, gpu := range host.GPUs {
		if why := whyNotGPU(gpu); why != "" {
			leftOut = append(leftOut, fmt.Sprintf("GPU %s: %s", gpu.Name, why))
			continue
		}
		gpus = append(gpus, gpu)
	}
	return gpus, leftOut
}

// allNICs are the host's hardware NICs, without those that it needs itself. A
// virtual one (veth, bridge, macvlan) may be anything; it is given by name alone.
func allNICs(host *discover.Host) (nics []discover.NIC, leftOut []string) {
	for _, nic := range host.NICs {
		if nic.PCIAddress == "" && len(nic.RDMA) == 0 {
			continue
		}
		if why := whyNotNIC(nic); why != "" {
			leftOut = append(leftOut, fmt.Sprintf("NIC %s: %s", nic.Name, why))
			continue
		}
		nics = append(nics, nic)
	}
	return nics, leftOut
}

// whyNotGPU says why a GPU cannot be given, or nothing.
func whyNotGPU(gpu discover.GPU) string {
	if gpu.Excluded {
		return "excluded from use by the driver (NVreg_ExcludedGpus)"
	}
	return ""
}

// whyNotNIC is the same for a NIC.
func whyNotNIC(nic discover.NIC) string {
	if nic.DefaultRoute == "" {
		return ""
	}
	return "this host needs it: " + nic.DefaultRoute
}

// names lists devices for an error message.
func names[T any](devices []T, name func(T) string) string {
	if len(devices) == 0 {
		return "none"
	}
	var out []string
	for _, d := range devices {
		out = append(out, name(d))
	}
	return strings.Join(out, ", ")
}
