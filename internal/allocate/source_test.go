package allocate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"podrail/pkg/discover"
)

const (
	uuid0 = "GPU-00000000-0000-0000-0000-000000000000"
	uuid1 = "GPU-11111111-1111-1111-1111-111111111111"
)

// twoAndTwo is a host with two GPUs and two NICs, and a third that carries the
// default route.
func twoAndTwo() *discover.Host {
	h := &discover.Host{}
	for i, uuid := range []string{uuid0, uuid1} {
		h.GPUs = append(h.GPUs, discover.GPU{Name: string('0' + rune(i)), Index: i, UUID: uuid, Minor: 1 - i, PCIAddress: []string{"0000:07:00.0", "0000:08:00.0"}[i]})
	}
	h.NICs = []discover.NIC{
		{Name: "eth0", Interface: "eth0", PCIAddress: "0000:01:00.0", DefaultRoute: "default route"},
		{Name: "nic0", Interface: "nic0", PCIAddress: "0000:09:00.0", RDMA: []discover.RDMADevice{{Name: "mlx5_0"}}},
		{Name: "mlx5_1", PCIAddress: "0000:0a:00.0", RDMA: []discover.RDMADevice{{Name: "mlx5_1"}}},
	}
	return h
}

// newPod is a pod whose files are those given, by name.
func newPod(t *testing.T, host *discover.Host, files map[string]string, environ ...string) Pod {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := discover.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return Pod{Root: root, Host: host, Environ: environ}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, environ, gpus, nics, err string
	}{
		{name: "nothing is set", gpus: "nothing 0", nics: "nothing 0"},
		{name: "an image's all", environ: "NVIDIA_VISIBLE_DEVICES=all", gpus: "nothing 0", nics: "nothing 0"},
		{name: "all among others", environ: "NVIDIA_VISIBLE_DEVICES=" + uuid0 + ",all", gpus: "nothing 0", nics: "nothing 0"},
		{name: "a CDI strategy's void", environ: "NVIDIA_VISIBLE_DEVICES=void", gpus: "nothing 0", nics: "nothing 0"},
		{name: "none", environ: "NVIDIA_VISIBLE_DEVICES=none", gpus: "names none", nics: "nothing 0"},
		{name: "UUIDs in another order", environ: "NVIDIA_VISIBLE_DEVICES=" + uuid1 + "," + uuid0, gpus: "names 0,1", nics: "nothing 0"},
		{name: "shares of one GPU", environ: "NVIDIA_VISIBLE_DEVICES=" + uuid1 + "::0," + uuid1 + "::3", gpus: "names 1", nics: "nothing 0"},
		{name: "indices", environ: "NVIDIA_VISIBLE_DEVICES=0,1", gpus: "count 2", nics: "nothing 0"},
		{name: "another host's UUID", environ: "NVIDIA_VISIBLE_DEVICES=GPU-22222222-2222-2222-2222-222222222222", err: "there is no GPU"},
		{name: "an unknown word", environ: "NVIDIA_VISIBLE_DEVICES=gpus", err: "is no UUID and no index"},
		{name: "volume mounts", environ: "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices", gpus: "names 1", nics: "nothing 0"},
		{name: "an SR-IOV NIC", environ: "PCIDEVICE_EXAMPLE_COM_NIC=0000:09:00.0 PCIDEVICE_EXAMPLE_COM_NIC_INFO={}", gpus: "nothing 0", nics: "names nic0"},
		{name: "two resources", environ: "PCIDEVICE_B=0000:0a:00.0 PCIDEVICE_A=0000:09:00.0", gpus: "nothing 0", nics: "names nic0,mlx5_1"},
		{name: "a NIC that is not here", environ: "PCIDEVICE_A=0000:0b:00.0", err: "network device without an interface"},
		{name: "an accelerator", environ: "PCIDEVICE_A=0000:0c:00.0", gpus: "nothing 0", nics: "nothing 0"},
		{name: "no such PCI device", environ: "PCIDEVICE_A=0000:0d:00.0", err: "no such file"},
		{name: "a sub-function", environ: "PCIDEVICE_A=mlx5_core.sf.4", err: "is no PCI address"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t, twoAndTwo(), map[string]string{
				"var/run/nvidia-container-devices/" + uuid1: "",
				"var/run/nvidia-container-devices/imex/0":   "",
				"sys/bus/pci/devices/0000:0b:00.0/class":    "0x020000\n",
				"sys/bus/pci/devices/0000:0c:00.0/class":    "0x120000\n",
			}, strings.Fields(test.environ)...)
			f := Environment{}.Ask(p)
			if !errorHas(f.Err, test.err) {
				t.Fatalf("error %v, expected one with %q", f.Err, test.err)
			}
			if f.Err != nil {
				return
			}
			if got := f.GPUs.Weight.String() + " " + f.GPUs.String(); got != test.gpus {
				t.Errorf("GPUs: %s, expected %s", got, test.gpus)
			}
			if got := f.NICs.Weight.String() + " " + f.NICs.String(); got != test.nics {
				t.Errorf("NICs: %s, expected %s", got, test.nics)
			}
		})
	}
}

// TestMIGWithoutNVML: UUIDs of MIG devices are NVML's secret, so proof of as many
// decides, and nothing else does.
func TestMIGWithoutNVML(t *testing.T) {
	t.Parallel()
	host := twoAndTwo()
	for i := range host.GPUs {
		host.GPUs[i].MIG = &discover.MIG{Parent: uuid0, GI: 1 + i}
		host.GPUs[i].Name = "0:" + host.GPUs[i].Name
		host.GPUs[i].UUID = "MIG-" + uuid0 + "/1/" + host.GPUs[i].Name
	}
	env := Environment{}.Ask(newPod(t, host, nil, "NVIDIA_VISIBLE_DEVICES=MIG-33333333-3333-3333-3333-333333333333"))
	env.Source = "env"
	if _, err := Decide([]Finding{env}); !errorHas(err, "no proof says which") {
		t.Errorf("a MIG UUID alone: %v", err)
	}
	one := Finding{Source: "container", GPUs: Said{Weight: Proves, Devices: []string{"0:1"}, Count: 1}}
	if d, err := Decide([]Finding{env, one}); err != nil || d.GPUs.String() != "0:1" || d.GPUSource != "container" {
		t.Errorf("a MIG UUID and proof of one device: %v, %v", d, err)
	}
	two := Finding{Source: "container", GPUs: Said{Weight: Proves, Devices: []string{"0:0", "0:1"}, Count: 2}}
	if _, err := Decide([]Finding{env, two}); !errorHas(err, "disagree") {
		t.Errorf("a MIG UUID and proof of two devices: %v", err)
	}
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	file := func(driver, devices string) map[string]string {
		return map[string]string{
			"var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/req/" + driver + "-metadata.json": `{"apiVersion":"metadata.resource.k8s.io/v1beta1","kind":"DeviceMetadata","requests":[{"name":"req","devices":[` + devices + `]}]}
{"apiVersion":"metadata.resource.k8s.io/v1alpha1","kind":"DeviceMetadata","requests":[]}`,
		}
	}
	for _, test := range []struct{ name, driver, devices, gpus, nics, err string }{
		{"a UUID", "gpu.nvidia.com", `{"driver":"gpu.nvidia.com","pool":"n","name":"gpu-7","attributes":{"uuid":{"string":"` + uuid1 + `"},"minor":{"int":0}}}`, "1", "0", ""},
		{"a minor, which is no index", "gpu.nvidia.com", `{"driver":"gpu.nvidia.com","name":"gpu-0"}`, "1", "0", ""},
		{"no such GPU", "gpu.nvidia.com", `{"driver":"gpu.nvidia.com","name":"gpu-5"}`, "", "", "none of this host's GPUs"},
		{"a NIC by address", "dra.net", `{"driver":"dra.net","name":"x","attributes":{"resource.kubernetes.io/pciBusID":{"string":"0000:0a:00.0"}}}`, "0", "mlx5_1", ""},
		{"a NIC by DraNet's name", "dra.net", `{"driver":"dra.net","name":"pci-0000-0a-00-0"}`, "0", "mlx5_1", ""},
		{"a NIC that was renamed", "dra.net", `{"driver":"dra.net","name":"eth3","networkData":{"interfaceName":"nic0"}}`, "0", "nic0", ""},
		{"no such NIC", "dra.net", `{"driver":"dra.net","name":"eth3"}`, "", "", "none of this host's NICs"},
		{"another driver's", "example.com", `{"driver":"example.com","name":"fpga-0"}`, "0", "0", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := Metadata{}.Ask(newPod(t, twoAndTwo(), file(test.driver, test.devices)))
			if !errorHas(f.Err, test.err) {
				t.Fatalf("error %v, expected one with %q", f.Err, test.err)
			}
			if f.Err == nil && (f.GPUs.String() != test.gpus || f.NICs.String() != test.nics) {
				t.Errorf("GPUs %s, NICs %s; expected %s and %s", f.GPUs, f.NICs, test.gpus, test.nics)
			}
		})
	}
	t.Run("not JSON", func(t *testing.T) {
		t.Parallel()
		f := Metadata{}.Ask(newPod(t, twoAndTwo(), file("gpu.nvidia.com", `{`)))
		if f.Err == nil {
			t.Error("a broken file was taken")
		}
	})
}

func TestPodInfo(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ annotations, labels, gpus, err string }{
		{"", "", "nothing", ""},
		{"a=\"b\"\ncdi-gen/gpus=\"2\"\n", "", "2", ""},
		{"", "nvidia.com/gpu=\"1\"\n", "1", ""},
		{"cdi-gen/gpus=\"2\"\n", "nvidia.com/gpu=\"1\"\n", "", "is 1, "},
		{"cdi-gen/gpus=\"all\"\n", "", "", "no number"},
		{"cdi-gen/gpus=2\n", "", "", "not in quotes"},
	} {
		f := PodInfo{}.Ask(newPod(t, twoAndTwo(), map[string]string{"etc/podinfo/annotations": test.annotations, "etc/podinfo/labels": test.labels}))
		if !errorHas(f.Err, test.err) {
			t.Errorf("%q, %q: error %v, expected one with %q", test.annotations, test.labels, f.Err, test.err)
			continue
		}
		if f.Err == nil && test.gpus != "nothing" && f.GPUs.String() != test.gpus {
			t.Errorf("%q, %q: %v", test.annotations, test.labels, f.GPUs)
		}
	}
}

// TestDecide: who wins, and what nobody wins.
func TestDecide(t *testing.T) {
	t.Parallel()
	gpus := func(source string, w Weight, devices ...string) Finding {
		return Finding{Source: source, GPUs: Said{Weight: w, Devices: devices, Count: len(devices), How: "as " + source + " says"}}
	}
	count := func(n int) Finding {
		return Finding{Source: "podinfo", GPUs: Said{Weight: Counts, Count: n, How: "annotation"}}
	}
	for _, test := range []struct {
		name     string
		findings []Finding
		want     string
		err      string
	}{
		{"nothing", []Finding{gpus("env", Silent)}, "", "nothing says"},
		{"a count alone", []Finding{count(8)}, "", "nothing says"},
		{"the first", []Finding{gpus("podresources", Names, "1"), gpus("container", Proves, "1")}, "1 podresources", ""},
		{"names and a count", []Finding{gpus("env", Names, "1"), count(1)}, "1 env", ""},
		{"a count that differs", []Finding{gpus("env", Names, "1"), count(2)}, "", "env gives 1 (as env says), podinfo gives 2 (annotation)"},
		{"proof of another", []Finding{gpus("env", Names, "1"), gpus("container", Proves, "0")}, "", "env gives 1 (as env says), container gives 0 (as container says)"},
		{"proof of more", []Finding{gpus("env", Names, "1"), gpus("container", Proves, "0", "1")}, "", "disagree"},
		{"proof of none", []Finding{gpus("env", Names, "1"), gpus("container", Proves)}, "", "disagree"},
		{"one that is broken", []Finding{{Source: "dra", Err: errors.New("broken")}, gpus("container", Proves, "0")}, "", "source dra: broken"},
	} {
		d, err := Decide(test.findings)
		if !errorHas(err, test.err) {
			t.Errorf("%s: error %v, expected one with %q", test.name, err, test.err)
			continue
		}
		if got := d.GPUs.String() + " " + d.GPUSource; err == nil && got != test.want {
			t.Errorf("%s: %s, expected %s", test.name, got, test.want)
		}
	}
}

// errorHas says whether an error has a text in it; an empty text is no error.
func errorHas(err error, text string) bool {
	if err == nil || text == "" {
		return err == nil && text == ""
	}
	return strings.Contains(err.Error(), text)
}
