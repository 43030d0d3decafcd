package allocate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"podrail/internal/resourceslice"
	"podrail/pkg/discover"
)

// Metadata goes by what DRA drivers mount into each container that lists a claim
// (KEP-5304): files of JSON with the devices and their attributes.
type Metadata struct{}

// Name is "dra".
func (Metadata) Name() string { return "dra" }

// metadataDir has CLAIM/REQUEST/DRIVER-metadata.json in two directories, for
// claims and for those made from a template.
const metadataDir = "/var/run/kubernetes.io/dra-device-attributes"

// deviceMetadata is a DeviceMetadata of metadata.resource.k8s.io, as far as its
// versions agree.
type deviceMetadata struct {
	Kind     string `json:"kind"`
	Requests []struct {
		Name    string `json:"name"`
		Devices []struct {
			Driver     string                        `json:"driver"`
			Name       string                        `json:"name"`
			Attributes map[string]map[string]rawJSON `json:"attributes"`
			Network    *struct {
				InterfaceName string `json:"interfaceName"`
			} `json:"networkData"`
		} `json:"devices"`
	} `json:"requests"`
}

type rawJSON = json.RawMessage

// Ask reads the files.
func (Metadata) Ask(p Pod) (f Finding) {
	files := metadataFiles(p.Root)
	if len(files) == 0 {
		f.GPUs = silent("no metadata of DRA devices in %s", metadataDir)
		f.NICs = f.GPUs
		return f
	}
	given := newCollection()
	for _, file := range files {
		if err := readMetadata(p, file, given); err != nil {
			f.Err = fmt.Errorf("%s: %w", file, err)
			return f
		}
	}
	how := "DRA metadata " + strings.Join(files, " ")
	f.GPUs, f.NICs = draSaid(p.Host, given, how)
	return f
}

// draSaid answers for the kinds that claims have devices of.
func draSaid(host *discover.Host, given *collection, how string) (gpus, nics Said) {
	gpus, nics = silent("%s: no GPU", how), silent("%s: no NIC", how)
	if len(given.gpus)+len(given.unknown) > 0 {
		gpus = given.saidGPUs(host, Names, how)
	}
	if len(given.nics) > 0 {
		nics = given.saidNICs(host, Names, how)
	}
	return gpus, nics
}

func metadataFiles(root *discover.Root) (files []string) {
	for _, kind := range []string{"resourceclaims", "resourceclaimtemplates"} {
		dirs := []string{path.Join(metadataDir, kind)}
		for range 2 { // CLAIM/REQUEST
			var below []string
			for _, dir := range dirs {
				names, _ := root.ReadDir(dir)
				for _, name := range names {
					below = append(below, path.Join(dir, name))
				}
			}
			dirs = below
		}
		for _, dir := range dirs {
			names, _ := root.ReadDir(dir)
			for _, name := range names {
				if strings.HasSuffix(name, "-metadata.json") {
					files = append(files, path.Join(dir, name))
				}
			}
		}
	}
	return files
}

// readMetadata reads the first of the objects in a file: the others are the same
// in older versions of the format.
func readMetadata(p Pod, file string, given *collection) error {
	data, err := p.Root.ReadFile(file)
	if err != nil {
		return err
	}
	var m deviceMetadata
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&m); err != nil {
		return err
	}
	if m.Kind != "DeviceMetadata" {
		return fmt.Errorf("kind is %q, expected DeviceMetadata", m.Kind)
	}
	for _, r := range m.Requests {
		for _, d := range r.Devices {
			c := claimed{driver: d.Driver, name: d.Name}
			for name, value := range d.Attributes {
				text := ""
				if json.Unmarshal(value["string"], &text) != nil {
					continue
				}
				switch name {
				case "uuid", resourceslice.GPUDriver + "/uuid":
					c.uuid = text
				case resourceslice.PCIBusID:
					c.pci = text
				case "dra.net/ifName":
					c.ifName = text
				}
			}
			if d.Network != nil && d.Network.InterfaceName != "" {
				c.ifName = d.Network.InterfaceName // as it is in the pod
			}
			if err := c.add(p.Host, given); err != nil {
				return err
			}
		}
	}
	return nil
}

// claimed is a device of a claim. Only driver and name are always known.
type claimed struct {
	driver, name, uuid, pci, ifName string
	// cdi are the CDI devices that the driver has the runtime inject.
	cdi []string
}

// add finds the device. One that is none of ours is left out if its driver is
// neither NVIDIA's nor DraNet's.
func (c claimed) add(host *discover.Host, given *collection) error {
	if c.driver == "" || c.name == "" { // a kubelet before 1.34
		return c.addByCDI(host, given)
	}
	switch address := pciAddress(c.pci); {
	case c.driver == resourceslice.GPUDriver && c.uuid != "":
		return given.addGPU(host, c.uuid)
	case c.driver == resourceslice.GPUDriver:
		return c.addGPUByName(host, given)
	case address != "" && len(nicsAt(host, address)) > 0:
		for _, i := range nicsAt(host, address) {
			if c.ifName == "" || host.NICs[i].Interface == c.ifName || len(nicsAt(host, address)) == 1 {
				given.nics[i] = true
			}
		}
		return nil
	case c.driver == resourceslice.NICDriver:
		return c.addNICByName(host, given)
	}
	return nil
}

// addGPUByName takes NVIDIA's names, gpu-MINOR and gpu-MINOR-mig-GI-CI.
func (c claimed) addGPUByName(host *discover.Host, given *collection) error {
	i := slices.IndexFunc(host.GPUs, func(g discover.GPU) bool {
		name := fmt.Sprintf("gpu-%d", g.Minor)
		if g.MIG != nil {
			name = fmt.Sprintf("%s-mig-%d-%d", name, g.MIG.GI, g.MIG.CI)
		}
		return name == c.name && !g.Excluded
	})
	if i < 0 {
		return fmt.Errorf("device %s of %s is none of this host's GPUs: %s", c.name, c.driver, names(host.GPUs, gpuName))
	}
	given.gpus[i] = true
	return nil
}

// addNICByName takes DraNet's names: the PCI address with hyphens, or, in older
// versions, the interface.
func (c claimed) addNICByName(host *discover.Host, given *collection) error {
	if address, ok := strings.CutPrefix(c.name, "pci-"); ok {
		if parts := strings.Split(address, "-"); len(parts) == 4 {
			address = fmt.Sprintf("%s:%s:%s.%s", parts[0], parts[1], parts[2], parts[3])
			for _, i := range nicsAt(host, pciAddress(address)) {
				given.nics[i] = true
				ok = false
			}
			if !ok {
				return nil
			}
		}
	}
	name := c.name
	if c.ifName != "" {
		name = c.ifName
	}
	i := slices.IndexFunc(host.NICs, func(n discover.NIC) bool { return n.Name == name })
	if i < 0 {
		return fmt.Errorf("device %s of %s is none of this host's NICs: %s", name, c.driver, names(host.NICs, nicName))
	}
	given.nics[i] = true
	return nil
}

// addByCDI takes the names of NVIDIA's CDI devices, claim=UID-gpu-MINOR, where
// nothing else is known.
func (c claimed) addByCDI(host *discover.Host, given *collection) error {
	for _, qualified := range c.cdi {
		kind, name, _ := strings.Cut(qualified, "=")
		if kind != "k8s.gpu.nvidia.com/claim" {
			continue
		}
		at := strings.LastIndex(name, "-gpu-")
		if at < 0 {
			return fmt.Errorf("CDI device %s does not say which GPU it is", qualified)
		}
		c.driver, c.name = resourceslice.GPUDriver, name[at+1:]
		if err := c.addGPUByName(host, given); err != nil {
			return err
		}
	}
	return nil
}
