package allocate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"podrail/pkg/discover"
)

// tree is a root with the given files below it.
func tree(t *testing.T, files map[string]string) *discover.Root {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := discover.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestRecord(t *testing.T) {
	t.Parallel()
	root := tree(t, nil)
	dir := filepath.Join(root.Dir(), StateDir)
	state, err := lockState(root, dir, filepath.Join(root.Dir(), lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	host := readHost(t, "a4-highgpu-8g")
	give := func(name string, gpus ...int) (undo func() error) {
		var d discover.Devices
		for _, i := range gpus {
			d.GPUs = append(d.GPUs, host.GPUs[i])
		}
		undo, err := state.Record(name, d)
		if err != nil {
			t.Fatal(err)
		}
		return undo
	}
	holders := func() string {
		taken, err := state.Taken()
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, g := range host.GPUs[:4] {
			out = append(out, taken.GPU(g)+".")
		}
		return strings.Join(out, "")
	}
	steps := []struct {
		do   func()
		want string
	}{
		{func() {}, "...."},
		{func() { give("a", 0, 1) }, "a.a..."},
		{func() { give("b", 2) }, "a.a.b.."},
		{func() { give("a", 3) }, "..b.a."},   // states the whole of a name
		{func() { give("a", 1)() }, "..b.a."}, // and back again
		{func() { give("c", 1)() }, "..b.a."}, // of a new name
		{func() { give("b") }, "...a."},       // nothing
		{func() { state.Free("a"); state.Free("a") }, "...."},
	}
	for i, s := range steps {
		s.do()
		if got := holders(); got != s.want {
			t.Errorf("step %d: %s, expected %s", i, got, s.want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestSame are devices that exclude each other under different names.
func TestSame(t *testing.T) {
	t.Parallel()
	whole := discover.GPU{Name: "0", UUID: "GPU-1", PCIAddress: "0000:01:00.0"}
	slice := discover.GPU{Name: "0:0", UUID: "MIG-x", PCIAddress: "0000:01:00.0", MIG: &discover.MIG{Parent: "GPU-1", GI: 1}}
	other := discover.GPU{Name: "0:1", UUID: "MIG-y", PCIAddress: "0000:01:00.0", MIG: &discover.MIG{Parent: "GPU-1", GI: 2}}
	later := discover.GPU{Name: "0:0", UUID: "MIG-GPU-1/1/0", MIG: &discover.MIG{Parent: "GPU-1", GI: 1}}
	for _, c := range []struct {
		a, b discover.GPU
		want bool
	}{
		{whole, whole, true}, {whole, slice, true}, {slice, whole, true}, {slice, other, false}, {slice, later, true},
		{whole, discover.GPU{UUID: "gpu-1"}, true}, {whole, discover.GPU{PCIAddress: "0000:01:00.0"}, true},
		{whole, discover.GPU{Name: "0"}, true}, {whole, discover.GPU{Name: "1"}, false},
	} {
		if got := sameGPU(c.a, c.b); got != c.want {
			t.Errorf("%+v and %+v: %v", c.a, c.b, got)
		}
	}
	home := discover.NIC{Name: "gpu0rdma0", Interface: "gpu0rdma0", Identity: "pci/0000:91:00.0", PCIAddress: "0000:91:00.0"}
	renamed := discover.NIC{Name: "eth9", Interface: "eth9", Identity: "pci/0000:91:00.0", PCIAddress: "0000:91:00.0"}
	away := discover.NIC{Name: "mlx5_0", Identity: "pci/0000:91:00.0", PCIAddress: "0000:91:00.0"}
	port := discover.NIC{Name: "p1", Interface: "p1", Identity: "pci/0000:91:00.0/1", PCIAddress: "0000:91:00.0"}
	veth := discover.NIC{Name: "veth0", Interface: "veth0", Identity: "ifindex/7"}
	for _, c := range []struct {
		a, b discover.NIC
		want bool
	}{
		{home, renamed, true}, {home, away, true}, {port, away, true}, {home, port, false}, {home, veth, false},
		{home, discover.NIC{Name: "gpu0rdma0"}, true}, {home, discover.NIC{PCIAddress: "0000:91:00.0"}, true},
	} {
		if sameNIC(c.a, c.b) != c.want || sameNIC(c.b, c.a) != c.want {
			t.Errorf("%s and %s: %v, %v", c.a.Name, c.b.Name, sameNIC(c.a, c.b), sameNIC(c.b, c.a))
		}
	}
}

func TestReadTakenBroken(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"":              "is not a JSON object",
		`{"gpus":[{"u`:  "is not an allocation",
		`{"gpus":[]} x`: "has more after",
	} {
		_, err := ReadTaken(tree(t, map[string]string{StateDir + "/job1.json": content}))
		if err == nil || !strings.Contains(err.Error(), StateDir+"/job1.json "+want) {
			t.Errorf("%q: %v", content, err)
		}
	}
	taken, err := ReadTaken(tree(t, map[string]string{StateDir + "/.tmp-1": "x", StateDir + "/notes": "x"}))
	if err != nil || len(taken) > 0 {
		t.Errorf("other files: %v, %v", taken, err)
	}
}

func TestLockStateDenied(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"run/cdi-gen": ""})
	if _, err := lockState(root, filepath.Join(root.Dir(), StateDir), filepath.Join(root.Dir(), lockFile)); err == nil || errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	host := readHost(t, "a4-highgpu-8g")
	host.NICs[1].Interface = "" // gpu0rdma0 is in a container
	free := Free(host, Taken{"job1": {GPUs: host.GPUs[:2], NICs: host.NICs[2:3]}})
	if got, want := given(Answer{Devices: free}), "2 3 4 5 6 7 gpu2rdma0 gpu3rdma0 gpu4rdma0 gpu5rdma0 gpu6rdma0 gpu7rdma0"; got != want {
		t.Errorf("free are %s, expected %s", got, want)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]int{"count=1": 1, "count=16": 16, "0,1": 0, "all": 0} {
		if n, ok, err := Count(list); n != want || ok != (want > 0) || err != nil {
			t.Errorf("%s: %d, %v, %v", list, n, ok, err)
		}
	}
	for _, list := range []string{"count=", "count=0", "count=-1", "count=two", "count=1,2"} {
		if _, ok, err := Count(list); !ok || !errors.As(err, new(*SyntaxError)) {
			t.Errorf("%s: %v, %v", list, ok, err)
		}
	}
}
