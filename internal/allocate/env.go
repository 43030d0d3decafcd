package allocate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"podrail/pkg/discover"
)

// Environment goes by what device plugins tell a container: NVIDIA's by
// NVIDIA_VISIBLE_DEVICES, the SR-IOV one by PCIDEVICE_*.
type Environment struct{}

// Name is "env".
func (Environment) Name() string { return "env" }

// Ask reads the environment.
func (Environment) Ask(p Pod) (f Finding) {
	var errGPUs, errNICs error
	f.GPUs, errGPUs = visibleDevices(p)
	f.NICs, errNICs = pciDevices(p)
	f.Err = errors.Join(errGPUs, errNICs)
	return f
}

const (
	visibleName = "NVIDIA_VISIBLE_DEVICES"
	// volumeMounts is NVIDIA_VISIBLE_DEVICES where the device plugin mounts
	// /dev/null at a file for each device, which, unlike the variable, cannot be
	// set in a pod's manifest.
	volumeMounts = "/var/run/nvidia-container-devices"
)

// visibleDevices reads NVIDIA_VISIBLE_DEVICES. Images of CUDA set it to "all",
// and manifests to indices that may be anybody's GPUs; so only UUIDs name any. A
// CDI strategy sets "void", whatever it gives.
func visibleDevices(p Pod) (Said, error) {
	value := p.getenv(visibleName)
	how := visibleName + "=" + value
	words := strings.Split(value, ",")
	if value == volumeMounts {
		var err error
		if words, err = p.Root.ReadDir(volumeMounts); err != nil {
			return Said{}, fmt.Errorf("%s: %w", visibleName, err)
		}
		words = slices.DeleteFunc(words, func(w string) bool { return w == "imex" })
		how = "files in " + volumeMounts + ": " + strings.Join(words, ",")
		value = strings.Join(words, ",")
	}
	switch value {
	case "":
		return silent("%s is not set", visibleName), nil
	case "void":
		return silent("%s, which says nothing", how), nil
	case "none":
		return Said{Weight: Names, Devices: []string{}, How: how}, nil
	}
	if slices.Contains(words, "all") {
		return silent("%s is set by images, and no proof", how), nil
	}
	return listed(p.Host, words, how)
}

// listed are GPUs by UUID, or a count of indices.
func listed(host *discover.Host, words []string, how string) (Said, error) {
	given, indices := newCollection(), map[string]bool{}
	for _, word := range words {
		if isIndex(word) {
			indices[word] = true
			continue
		}
		if !strings.HasPrefix(word, "GPU-") && !strings.HasPrefix(word, "MIG-") {
			return Said{}, fmt.Errorf("%s: %q is no UUID and no index", how, word)
		}
		if err := given.addGPU(host, word); err != nil {
			return Said{}, fmt.Errorf("%s: %w", how, err)
		}
	}
	if len(indices) == 0 {
		return given.saidGPUs(host, Names, how), nil
	}
	if len(given.gpus)+len(given.unknown) > 0 {
		return Said{}, fmt.Errorf("%s has indices and UUIDs", how)
	}
	return Said{Weight: Counts, Count: len(indices), How: how + ": indices, which anybody can write, count but do not name"}, nil
}

// isIndex takes "0", and "0:1" of MIG.
func isIndex(word string) bool {
	for _, number := range strings.SplitN(word, ":", 2) {
		if _, err := strconv.ParseUint(number, 10, 16); err != nil {
			return false
		}
	}
	return true
}

// pciDevices reads PCIDEVICE_RESOURCE=ADDRESS,ADDRESS of the SR-IOV network
// device plugin. PCIDEVICE_RESOURCE_INFO is JSON about the same devices.
func pciDevices(p Pod) (Said, error) {
	given := newCollection()
	var how []string
	for _, variable := range p.Environ {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "PCIDEVICE_") || strings.HasSuffix(name, "_INFO") || value == "" {
			continue
		}
		for _, word := range strings.Split(value, ",") {
			nic, err := isNIC(p, word)
			if err != nil {
				return Said{}, fmt.Errorf("%s: %w", variable, err)
			}
			if !nic {
				continue
			}
			for _, i := range nicsAt(p.Host, pciAddress(word)) {
				given.nics[i] = true
			}
			if !slices.Contains(how, variable) {
				how = append(how, variable)
			}
		}
	}
	if len(how) == 0 {
		return silent("no PCIDEVICE_* of a NIC is set"), nil
	}
	slices.Sort(how)
	return given.saidNICs(p.Host, Names, strings.Join(how, " ")), nil
}

// isNIC says whether a PCI address is a NIC's; the plugin gives other functions,
// too. A network function that is no NIC of this host, with vfio-pci say, is an
// error.
func isNIC(p Pod, word string) (bool, error) {
	address := pciAddress(word)
	if address == "" {
		return false, fmt.Errorf("%q is no PCI address", word)
	}
	if len(nicsAt(p.Host, address)) > 0 {
		return true, nil
	}
	class, err := p.Root.ReadFile(path.Join("/sys/bus/pci/devices", address, "class"))
	if err != nil {
		return false, fmt.Errorf("PCI device %s: %w", address, err)
	}
	if strings.HasPrefix(string(class), "0x02") {
		return false, fmt.Errorf("%s is a network device without an interface or RDMA device here", address)
	}
	return false, nil
}

// nicsAt are the places of the NICs of one PCI function.
func nicsAt(host *discover.Host, address string) (places []int) {
	for i, n := range host.NICs {
		if address != "" && n.PCIAddress == address {
			places = append(places, i)
		}
	}
	return places
}
