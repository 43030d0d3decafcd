package discover_test

import (
	"encoding/json"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"podrail/internal/golden"
	"podrail/internal/link"
	"podrail/pkg/discover"
)

const hosts = "../../testdata/hosts"

func TestHosts(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(hosts, "*", "dev"))
	if err != nil || len(dirs) < 4 {
		t.Fatalf("host trees: %v, %v", dirs, err)
	}
	for _, dev := range dirs {
		dir := filepath.Dir(dev)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			host := read(t, dir)
			if len(host.Problems) > 0 {
				t.Errorf("problems: %v", host.Problems)
			}
			got, err := json.MarshalIndent(host, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, dir+".golden.json", append(got, '\n'))
		})
	}
}

// TestA4 checks by hand what a golden file would only repeat.
func TestA4(t *testing.T) {
	t.Parallel()
	host := read(t, filepath.Join(hosts, "a4-highgpu-8g"))
	var buses, names, uplinks []string
	for _, gpu := range host.GPUs {
		buses = append(buses, gpu.PCIAddress[5:7])
	}
	for _, nic := range host.NICs {
		if nic.DefaultRoute != "" {
			uplinks = append(uplinks, nic.Name)
			continue
		}
		names = append(names, nic.Name+"="+nic.RDMA[0].Name+"="+filepath.Base(nic.RDMA[0].Uverbs.Path))
		if nic.MTU != 8896 || nic.Kind != discover.PF || nic.Driver != "mlx5_core" {
			t.Errorf("%s: MTU %d, kind %s, driver %s", nic.Name, nic.MTU, nic.Kind, nic.Driver)
		}
	}
	want := [3]string{
		"8f 90 96 97 c4 c5 cb cc",
		"gpu0rdma0=mlx5_0=uverbs0 gpu1rdma0=mlx5_1=uverbs1 gpu2rdma0=mlx5_2=uverbs2 gpu3rdma0=mlx5_3=uverbs3 " +
			"gpu4rdma0=mlx5_4=uverbs4 gpu5rdma0=mlx5_5=uverbs5 gpu6rdma0=mlx5_6=uverbs6 gpu7rdma0=mlx5_7=uverbs7",
		"eth0",
	}
	got := [3]string{strings.Join(buses, " "), strings.Join(names, " "), strings.Join(uplinks, " ")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSysfsAlone reads the trees without net.json: the NICs must have the same
// names, identities and RDMA devices as by netlink.
func TestSysfsAlone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a4-highgpu-8g", "h200-x2", "infiniband-4vf", "no-devices"} {
		want := read(t, filepath.Join(hosts, name))
		dir := copyTree(t, name)
		remove(t, dir, "net.json")
		got := read(t, dir)
		for i := range want.NICs { // what only netlink knows
			want.NICs[i].Addresses, want.NICs[i].DefaultRoute, want.NICs[i].LinkKind = nil, "", ""
		}
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Errorf("%s without net.json (-with +without):\n%s", name, diff)
		}
	}
}

// TestHostile breaks one thing of a host each; the rest must stay as it is.
func TestHostile(t *testing.T) {
	t.Parallel()
	const gpu3 = "proc/driver/nvidia/gpus/0000:97:00.0/information"
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, dir string)
		// lost are the names of the devices that are not there any more, and
		// problem what the one problem says, after the device's name.
		lost    string
		problem string
	}{
		{"information is empty", func(t *testing.T, dir string) { write(t, dir, gpu3, "") },
			"3", "0000:97:00.0: GPU has no device minor number"},
		{"information is cut", func(t *testing.T, dir string) { write(t, dir, gpu3, "Model: \t\t NVIDIA B200\nGPU UU") },
			"3", "0000:97:00.0: GPU has no device minor number"},
		{"no UUID", func(t *testing.T, dir string) { replace(t, dir, gpu3, "GPU UUID:", "Some UUID:") },
			"3", `0000:97:00.0: GPU has no valid UUID: ""`},
		{"UUID not read yet", func(t *testing.T, dir string) {
			replace(t, dir, gpu3, "GPU-a97be460-14f8-d23c-5e61-f08b3c7a9d12", "GPU-????????-????-????-????-????????????")
		}, "3", "0000:97:00.0: GPU has no UUID yet"},
		{"UUID is a path", func(t *testing.T, dir string) {
			replace(t, dir, gpu3, "GPU-a97be460-14f8-d23c-5e61-f08b3c7a9d12", "GPU-../../../etc/passwd")
		}, "3", `0000:97:00.0: GPU has no valid UUID`},
		{"minor is negative", func(t *testing.T, dir string) { replace(t, dir, gpu3, "Device Minor: \t 3", "Device Minor: -3") },
			"3", `0000:97:00.0: GPU has no device minor number: "-3"`},
		{"no information", func(t *testing.T, dir string) { remove(t, dir, gpu3) },
			"3", "no such file or directory"},
		{"information is a FIFO", func(t *testing.T, dir string) { remove(t, dir, gpu3); fifo(t, dir, gpu3) },
			"3", "not a regular file"},
		{"information is a directory", func(t *testing.T, dir string) { remove(t, dir, gpu3); mkdir(t, dir, gpu3) },
			"3", "not a regular file"},
		{"information is a loop of links", func(t *testing.T, dir string) { remove(t, dir, gpu3); symlink(t, dir, "information", gpu3) },
			"3", "too many levels of symbolic links"},
		{"information is a link that leaves the root", func(t *testing.T, dir string) {
			remove(t, dir, gpu3)
			symlink(t, dir, strings.Repeat("../", 40)+"etc/hostname", gpu3)
		}, "3", "no such file or directory"},
		{"information is huge", func(t *testing.T, dir string) { truncate(t, dir, gpu3, 17<<20) },
			"3", "file too large"},
		{"node of another GPU", func(t *testing.T, dir string) { replace(t, dir, "dev", "195 3 /dev/nvidia3", "195 2 /dev/nvidia3") },
			"", "0000:97:00.0: /dev/nvidia3 is device 195:2, want 195:3"},
		{"node of another RDMA device", func(t *testing.T, dir string) {
			replace(t, dir, "dev", "231 195 /dev/infiniband/uverbs3", "231 194 /dev/infiniband/uverbs3")
		}, "", "mlx5_3: /dev/infiniband/uverbs3 is device 231:194, want 231:195"},
		{"no device beneath a NIC", func(t *testing.T, dir string) { replace(t, dir, "net.json", "0000:91:00.0", "0000:f1:00.0") },
			"", "gpu0rdma0: no device 0000:f1:00.0 on bus pci in sysfs"},
		{"no ports of an RDMA device", func(t *testing.T, dir string) { remove(t, dir, "sys/class/infiniband/mlx5_0/ports") },
			"", "no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := copyTree(t, "a4-highgpu-8g")
			tt.do(t, dir)
			got := read(t, dir)
			if len(got.Problems) != 1 || !strings.Contains(got.Problems[0].Device+": "+got.Problems[0].Text, tt.problem) {
				t.Errorf("problems are %q, want one that says %q", got.Problems, tt.problem)
			}
			var names []string
			for _, gpu := range got.GPUs {
				names = append(names, gpu.Name)
			}
			want := slices.DeleteFunc(strings.Split("01234567", ""), func(s string) bool { return s == tt.lost })
			if !slices.Equal(names, want) {
				t.Errorf("GPUs are %q, want %q", names, want)
			}
			for _, gpu := range got.GPUs {
				if given := strings.Contains(tt.problem, gpu.PCIAddress); len(gpu.Nodes) == 0 != given {
					t.Errorf("GPU %s has nodes %v", gpu.Name, gpu.Nodes)
				}
			}
			for _, nic := range want9(t, got) {
				if nic.DefaultRoute == "" && nic.RDMA == nil && nic.Name != "gpu0rdma0" {
					t.Errorf("%s has lost its RDMA device", nic.Name)
				}
			}
		})
	}
}

// want9 are the interfaces of the host, all of which must be there.
func want9(t *testing.T, h *discover.Host) []discover.NIC {
	nics := slices.DeleteFunc(slices.Clone(h.NICs), func(n discover.NIC) bool { return n.Interface == "" })
	if len(nics) != 9 {
		t.Errorf("%d interfaces, want 9", len(nics))
	}
	return nics
}

func TestBadTrees(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, file, text, want string }{
		{"net.json", "net.json", "{", "net.json: unexpected end of JSON input"},
		{"dev, too few words", "dev", "crw-rw-rw- 0 0 195 /dev/nvidia0", "line 1: "},
		{"dev, bad mode", "dev", "# a comment\n\ncrw-rq-rw- 0 0 195 0 /dev/nvidia0", "line 3: "},
		{"dev, block device", "dev", "brw-rw-rw- 0 0 195 0 /dev/nvidia0", "line 1: "},
		{"dev, bad number", "dev", "crw-rw-rw- 0 0 195 -1 /dev/nvidia0", "line 1: "},
		{"dev, path leaves", "dev", "crw-rw-rw- 0 0 195 1 /dev/../etc/passwd", "line 1: "},
	} {
		dir := copyTree(t, "no-devices")
		write(t, dir, tt.file, tt.text)
		root, err := discover.OpenRoot(dir)
		if err == nil {
			_, err = discover.Read(root)
			root.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want one with %q", tt.name, err, tt.want)
		}
	}
}

// TestExcluded: the driver does not count an excluded GPU, but one that cannot
// be read.
func TestExcluded(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "a4-highgpu-8g")
	replace(t, dir, "proc/driver/nvidia/gpus/0000:90:00.0/information", "GPU Excluded:\t No", "GPU Excluded:\t Yes")
	remove(t, dir, "proc/driver/nvidia/gpus/0000:96:00.0/information")
	var got []string
	for _, gpu := range read(t, dir).GPUs {
		got = append(got, gpu.Name)
	}
	if diff := cmp.Diff(strings.Fields("0 0000:90:00.0 2 3 4 5 6"), got); diff != "" {
		t.Error(diff)
	}
}

// TestTenth: names are matched whole, and in natural order.
func TestTenth(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "infiniband-4vf")
	for _, class := range []string{"infiniband_verbs/uverbs2", "infiniband_mad/umad2", "infiniband_mad/issm2"} {
		write(t, dir, "sys/class/"+class+"/ibdev", "mlx5_10\n")
	}
	vf := "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/infiniband/"
	rename(t, dir, vf+"mlx5_2", vf+"mlx5_10")
	remove(t, dir, "sys/class/infiniband/mlx5_2")
	symlink(t, dir, "/"+vf+"mlx5_10", "sys/class/infiniband/mlx5_10")
	replace(t, dir, "net.json", `"name": "ib2"`, `"name": "ib10"`)
	got := map[string]string{}
	var order []string
	for _, nic := range read(t, dir).NICs {
		order = append(order, nic.Name)
		for _, dev := range nic.RDMA {
			got[nic.Name+" "+dev.Name] = dev.Uverbs.Path + " " + dev.UMAD[0].Path + " " + dev.ISSM[0].Path
		}
	}
	nodes := func(n string) string {
		return "/dev/infiniband/uverbs" + n + " /dev/infiniband/umad" + n + " /dev/infiniband/issm" + n
	}
	want := map[string]string{
		"ib0 mlx5_0": nodes("0"), "ib1 mlx5_1": nodes("1"), "ib10 mlx5_10": nodes("2"),
		"ib3 mlx5_3": nodes("3"), "ib4 mlx5_4": nodes("4"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(strings.Fields("eno1 ib0 ib1 ib3 ib4 ib10"), order); diff != "" {
		t.Error(diff)
	}
}

// TestInterfaceElsewhere: an RDMA device whose interface is in another
// namespace is a NIC of its own, with the same identity; one that is away in
// exclusive mode leaves its nodes' class entries behind.
func TestInterfaceElsewhere(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "infiniband-4vf")
	before := read(t, dir)
	edit(t, dir, "net.json", func(s string) string {
		var state link.State
		if err := json.Unmarshal([]byte(s), &state); err != nil {
			t.Fatal(err)
		}
		state.Links = slices.DeleteFunc(state.Links, func(l link.Link) bool { return l.Name == "ib1" || l.Name == "ib2" })
		out, _ := json.Marshal(state)
		return string(out)
	})
	remove(t, dir, "sys/class/infiniband/mlx5_2")
	after := read(t, dir)
	if len(after.NICs) != 5 || len(after.Problems) != 0 {
		t.Fatalf("NICs %v, problems %v", after.NICs, after.Problems)
	}
	got, want := after.NICs[4], before.NICs[2]
	if got.Name != "mlx5_1" || got.Interface != "" || got.Identity != want.Identity || got.PF != want.PF || got.Kind != discover.VF {
		t.Errorf("without interface it is %+v, with interface %+v", got, want)
	}
	if diff := cmp.Diff(want.RDMA, got.RDMA); diff != "" {
		t.Error(diff)
	}
}

// TestPorts: of an RDMA device with two ports each belongs to an interface of
// its own; where many have one port, to the one that it names.
func TestPorts(t *testing.T) {
	t.Parallel()
	const dev = "sys/devices/pci0000:00/0000:00:03.0/virtio0"
	dir := copyTree(t, "no-devices")
	symlink(t, dir, "/"+dev, dev+"/infiniband/mlx4_0/device")
	symlink(t, dir, "/"+dev+"/infiniband/mlx4_0", "sys/class/infiniband/mlx4_0")
	write(t, dir, dev+"/infiniband/mlx4_0/ports/1/gid_attrs/ndevs/0", "nic1\n")
	write(t, dir, dev+"/infiniband/mlx4_0/ports/2/link_layer", "Ethernet\n")
	write(t, dir, "net.json", `{"links": [
		{"ifindex": 2, "name": "representor0", "parentBus": "virtio", "parentDev": "virtio0"},
		{"ifindex": 5, "name": "nic1", "parentBus": "virtio", "parentDev": "virtio0"},
		{"ifindex": 4, "name": "nic2", "parentBus": "virtio", "parentDev": "virtio0", "port": 1},
		{"ifindex": 3, "name": "nic3", "parentBus": "virtio", "parentDev": "virtio0", "port": 2}]}`)
	var got []string
	for _, nic := range read(t, dir).NICs {
		if nic.RDMA != nil {
			got = append(got, nic.Name+" "+nic.Identity)
		}
	}
	if diff := cmp.Diff([]string{"nic1 virtio/virtio0", "nic2 virtio/virtio0/1"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestSoftwareRDMA: rxe and siw have no device beneath; rxe names its link.
func TestSoftwareRDMA(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "no-devices")
	const rxe = "sys/devices/virtual/infiniband/rxe0/"
	write(t, dir, rxe+"parent", "eth0\n")
	write(t, dir, rxe+"ports/1/link_layer", "Ethernet\n")
	symlink(t, dir, "/"+rxe, "sys/class/infiniband/rxe0")
	const siw = "sys/devices/virtual/infiniband/siw0/"
	write(t, dir, siw+"node_type", "4: RNIC\n")
	symlink(t, dir, "/"+siw, "sys/class/infiniband/siw0")
	mkdir(t, dir, siw+"ports")
	host := read(t, dir)
	if len(host.NICs) != 2 || len(host.NICs[0].RDMA) != 1 || host.NICs[0].RDMA[0].Name != "rxe0" {
		t.Errorf("NICs are %+v", host.NICs)
	} else if nic := host.NICs[1]; nic.Name != "siw0" || nic.Identity != "rdma/siw0" || nic.RDMA[0].NodeType != "RNIC" {
		t.Errorf("siw0 is %+v", nic)
	}
}

// TestLive reads this machine, whatever it has.
func TestLive(t *testing.T) {
	t.Parallel()
	host := read(t, "/")
	if len(host.NUMANodes) == 0 && len(host.PCI) == 0 {
		t.Skip("no sysfs here")
	}
	for _, nic := range host.NICs {
		if nic.Name == "" || nic.Identity == "" || nic.Kind == discover.Virtual != (nic.PCIAddress == "" && nic.Driver == "") {
			t.Errorf("NIC %+v", nic)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, dir := range []string{"/", filepath.Join(hosts, "a4-highgpu-8g")} {
		b.Run(filepath.Base(dir), func(b *testing.B) {
			root, err := discover.OpenRoot(dir)
			if err != nil {
				b.Fatal(err)
			}
			defer root.Close()
			for b.Loop() {
				if _, err := discover.Read(root); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func read(t *testing.T, dir string) *discover.Host {
	t.Helper()
	root, err := discover.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	host, err := discover.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	return host
}

var compareAddrs = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// copyTree copies a host's tree without the driver's files.
func copyTree(t *testing.T, name string) string {
	t.Helper()
	from, to := filepath.Join(hosts, name), t.TempDir()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, _ := filepath.Rel(from, path)
		switch target := filepath.Join(to, below); {
		case below == "home" || below == "usr":
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case d.Type() == fs.ModeSymlink:
			text, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(text, target)
		default:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(target, data, 0o644)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}
