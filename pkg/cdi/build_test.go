package cdi

import (
	"fmt"
	"strings"
	"testing"

	"podrail/pkg/discover"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

// host has two GPUs and three NICs: RoCE, an RDMA device without an interface,
// and a veth.
func host() *discover.Host {
	node := func(path string, major, minor uint32) discover.DeviceNode {
		return discover.DeviceNode{Path: path, Major: major, Minor: minor, Mode: 0o666}
	}
	rdma := func(name string, n uint32) []discover.RDMADevice {
		uverbs := node(fmt.Sprintf("/dev/infiniband/uverbs%d", n), 231, 192+n)
		return []discover.RDMADevice{{Name: name, Uverbs: &uverbs,
			UMAD: []discover.DeviceNode{node(fmt.Sprintf("/dev/infiniband/umad%d", n), 231, n)},
			ISSM: []discover.DeviceNode{node(fmt.Sprintf("/dev/infiniband/issm%d", n), 231, 64+n)}}}
	}
	cm := node("/dev/infiniband/rdma_cm", 10, 58)
	return &discover.Host{
		DriverVersion: "9.1",
		ControlNodes:  []discover.DeviceNode{node("/dev/nvidiactl", 195, 255), node("/dev/nvidia-uvm", 508, 0)},
		RDMACM:        &cm,
		Devices: discover.Devices{
			GPUs: []discover.GPU{
				{Name: "0", Index: 0, UUID: "GPU-a", Minor: 1, PCIAddress: "0000:01:00.0", Nodes: []discover.DeviceNode{node("/dev/nvidia1", 195, 1)}},
				{Name: "1", Index: 1, UUID: "GPU-b", Minor: 0, PCIAddress: "0000:02:00.0", Nodes: []discover.DeviceNode{node("/dev/nvidia0", 195, 0)}},
			},
			NICs: []discover.NIC{
				{Name: "eth1", Interface: "eth1", Identity: "pci/0000:03:00.0", PCIAddress: "0000:03:00.0", RDMA: rdma("mlx5_0", 0)},
				{Name: "mlx5_1", Identity: "pci/0000:04:00.0", PCIAddress: "0000:04:00.0", RDMA: rdma("mlx5_1", 1)},
				{Name: "veth0", Interface: "veth0", Identity: "ifindex/7", Kind: discover.Virtual},
			},
		},
	}
}

func hostRoot(t *testing.T) *discover.Root {
	return tree(t, map[string]string{
		"usr/lib64/libcuda.so.9.1": "", "usr/lib64/libnvidia-ml.so.9.1": "", "usr/bin/nvidia-smi": "",
	})
}

// TestBuildErrors takes something away that a spec cannot do without.
func TestBuildErrors(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		spoil func(h *discover.Host, o *Options)
		want  string
	}{
		{"GPU without node", func(h *discover.Host, _ *Options) { h.GPUs[1].Nodes = nil }, "GPU 0000:02:00.0 (GPU-b): no device node /dev/nvidia0"},
		{"no nvidiactl", func(h *discover.Host, _ *Options) { h.ControlNodes = h.ControlNodes[1:] }, "/dev/nvidiactl is missing"},
		{"no nvidia-uvm", func(h *discover.Host, _ *Options) { h.ControlNodes = h.ControlNodes[:1] }, "/dev/nvidia-uvm is missing"},
		{"no driver", func(h *discover.Host, _ *Options) { h.DriverVersion = "" }, "version is unknown"},
		{"no uverbs", func(h *discover.Host, _ *Options) { h.NICs[0].RDMA[0].Uverbs = nil }, "NIC eth1: its RDMA device mlx5_0 has no node"},
		{"NIC called all", func(h *discover.Host, _ *Options) { h.NICs[0].Name = "all" }, "cannot be a CDI device's"},
		{"NIC with a name for no CDI device", func(h *discover.Host, _ *Options) { h.NICs[0].Name = "eth+1" }, "cannot be a CDI device's"},
		{"identity that would be read otherwise", func(h *discover.Host, _ *Options) { h.NICs[0].Identity = "x,rdma=mlx5_9" }, "NIC \"eth1\""},
		{"relative hook", func(_ *discover.Host, o *Options) { o.HookPath = "netdev-hook" }, "must be an absolute path"},
		{"veth as nodes alone", func(_ *discover.Host, o *Options) { o.NICMode = NICDevices }, "NIC veth0 has no RDMA device"},
		{"one kind for both", func(_ *discover.Host, o *Options) { o.NICKind = DefaultGPUKind }, "the same kind"},
		{"one-letter vendor", func(_ *discover.Host, o *Options) { o.GPUKind = "n/gpu" }, "two letters or more"},
		{"name that leaves the directory", func(_ *discover.Host, o *Options) { o.Name = "../x" }, "name \"../x\""},
		{"mount of nothing", func(_ *discover.Host, o *Options) { o.Mounts = []Mount{{Host: "/gone", Container: "/x"}} }, "/gone does not exist"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, o := host(), Options{HookPath: "/usr/bin/netdev-hook"}
			c.spoil(h, &o)
			if _, err := Build(hostRoot(t), h, h.Devices, o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, expected %q", err, c.want)
			}
		})
	}
}

// TestBuild looks at what is easy to get wrong.
func TestBuild(t *testing.T) {
	t.Parallel()
	h := host()
	h.GPUs[0], h.GPUs[1] = h.GPUs[1], h.GPUs[0] // the order asked for does not matter
	built, err := Build(hostRoot(t), h, h.Devices, Options{Name: "p", HookPath: "/usr/bin/netdev-hook", Env: []string{"A=1", "A=2"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(built.Specs) != 2 || built.Specs[0].FileName != "nvidia.com-gpu_p" || built.Specs[1].FileName != "dra.net-nic_p" {
		t.Fatalf("specs are %+v", built.Specs)
	}
	gpu, nic := built.Specs[0], built.Specs[1]
	if got, want := strings.Join(gpu.QualifiedNames(), " "), "nvidia.com/gpu=p-0 nvidia.com/gpu=p-1 nvidia.com/gpu=p-GPU-a nvidia.com/gpu=p-GPU-b nvidia.com/gpu=p-all"; got != want {
		t.Errorf("GPU devices are %s, expected %s", got, want)
	}
	if got := gpu.Devices[0].ContainerEdits.DeviceNodes[0]; got.Path != "/dev/nvidia1" || got.Major != 195 || got.Minor != 1 {
		t.Errorf("device 0 is %+v, expected /dev/nvidia1: PCI order, not minors", got)
	}
	if got := strings.Join(gpu.ContainerEdits.Env, " "); got != "NVIDIA_VISIBLE_DEVICES=void A=2" {
		t.Errorf("env is %s", got)
	}
	for _, spec := range built.Specs {
		for _, edits := range allEdits(&spec.Spec) {
			for _, n := range edits.DeviceNodes {
				if n.Major != 0 && n.Major != 195 {
					t.Errorf("%s has the dynamic major %d", n.Path, n.Major)
				}
				if strings.Contains(n.Path, "issm") || strings.Contains(n.Path, "umad") {
					t.Errorf("%s was not asked for", n.Path)
				}
			}
		}
	}
	all := nic.Devices[len(nic.Devices)-1]
	if len(all.ContainerEdits.Hooks) != 1 || len(nic.ContainerEdits.Hooks) != 1 {
		t.Fatalf("hooks of all: %+v, of the spec: %+v; expected one each", all.ContainerEdits.Hooks, nic.ContainerEdits.Hooks)
	}
	want := "netdev-hook createRuntime --netdev eth1,id=pci/0000:03:00.0,rdma=mlx5_0,nodes=uverbs0" +
		" --netdev mlx5_1,id=pci/0000:04:00.0,rdma=mlx5_1,nodes=uverbs1 --netdev veth0,id=ifindex/7"
	if got := strings.Join(all.ContainerEdits.Hooks[0].Args, " "); got != want {
		t.Errorf("hook is\n%s, expected\n%s", got, want)
	}
}

func BenchmarkBuild(b *testing.B) {
	root, err := discover.OpenRoot("../../testdata/hosts/a4-highgpu-8g")
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	h, err := discover.Read(root)
	if err != nil {
		b.Fatal(err)
	}
	h.NICs = h.NICs[1:] // not the uplink
	b.ReportAllocs()
	for b.Loop() {
		built, err := Build(root, h, h.Devices, Options{HookPath: "/usr/bin/netdev-hook"})
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range built.Specs {
			if _, err := s.Marshal(YAML); err != nil {
				b.Fatal(err)
			}
		}
	}
}
