package resourceslice_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"podrail/internal/golden"
	"podrail/internal/resourceslice"
	"podrail/pkg/discover"

	"sigs.k8s.io/yaml"
)

const hosts = "../../testdata/hosts"

func TestHosts(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a4-highgpu-8g", "a100-mig", "infiniband-4vf", "no-devices"} {
		root, err := discover.OpenRoot(filepath.Join(hosts, name))
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		host, err := discover.Read(root)
		if err != nil {
			t.Fatal(err)
		}
		got := []byte{}
		for _, slice := range resourceslice.Make(host, resourceslice.NodeName(root)) {
			data, err := yaml.Marshal(slice)
			if err != nil {
				t.Fatal(err)
			}
			got = append(append(got, "---\n"...), data...)
		}
		golden.Check(t, filepath.Join("testdata", name+".yaml"), got)
	}
}

// TestMany is a host with more NICs than a slice can hold.
func TestMany(t *testing.T) {
	t.Parallel()
	host := &discover.Host{}
	for i := range 300 {
		host.NICs = append(host.NICs, discover.NIC{Name: fmt.Sprint("vf", i), PCIAddress: fmt.Sprintf("0000:01:%02x.%d", i/8, i%8)})
	}
	slices := resourceslice.Make(host, "n")
	if len(slices) != 3 || slices[0].Spec.Pool.ResourceSliceCount != 3 || len(slices[0].Spec.Devices) != 128 || len(slices[2].Spec.Devices) != 44 {
		t.Errorf("%d slices", len(slices))
	}
}

// TestNames are interface names that are no names of devices in Kubernetes.
func TestNames(t *testing.T) {
	t.Parallel()
	host := &discover.Host{}
	names := map[string]string{"eth0": "eth0", "Eth0": "normalized-eth0", "eth.0": "normalized-eth-0", "eth_0": "normalized-eth-0-1", "-x-": "normalized-x"}
	for _, name := range []string{"eth0", "Eth0", "eth.0", "eth_0", "-x-"} {
		host.NICs = append(host.NICs, discover.NIC{Name: name, PCIAddress: "0000:01:00.0"})
	}
	for _, d := range resourceslice.Make(host, "n")[0].Spec.Devices {
		if d.Name != names[d.NIC.Name] {
			t.Errorf("%s is %s, expected %s", d.NIC.Name, d.Name, names[d.NIC.Name])
		}
	}
}
