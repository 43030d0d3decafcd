package allocate

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"podrail/pkg/discover"
)

func readHost(t testing.TB, name string) *discover.Host {
	t.Helper()
	root, err := discover.OpenRoot(filepath.Join("../../testdata/hosts", name))
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

// given is what an answer holds, by name.
func given(a Answer) string {
	var out []string
	for _, g := range a.Devices.GPUs {
		out = append(out, g.Name)
	}
	for _, n := range a.Devices.NICs {
		out = append(out, n.Name)
	}
	return strings.Join(out, " ")
}

func TestLists(t *testing.T) {
	t.Parallel()
	host := readHost(t, "a4-highgpu-8g")
	cases := []struct{ gpus, nics, want string }{
		{"1,0", "", "0 1"},
		{"GPU-f538682c-7be3-18c8-91b6-5a3fc69143d0", "", "1"},
		{"gpu-F538682C-7be3-18c8-91b6-5a3fc69143d0", "", "1"},
		{"8f:00.0,0000:90:00.0,00000000:96:00.0", "", "0 1 2"},
		{"", "gpu3rdma0,mlx5_0,0000:92:00.0", "gpu0rdma0 gpu1rdma0 gpu3rdma0"},
		{"none", "none", ""},
		{"all", "none", "0 1 2 3 4 5 6 7"},
		{"0", "all", "0 gpu0rdma0 gpu1rdma0 gpu2rdma0 gpu3rdma0 gpu4rdma0 gpu5rdma0 gpu6rdma0 gpu7rdma0"},
	}
	for _, c := range cases {
		a, err := Lists(host, c.gpus, c.nics)
		if err != nil {
			t.Errorf("%q %q: %v", c.gpus, c.nics, err)
			continue
		}
		if got := given(a); got != c.want {
			t.Errorf("%q %q gives %q, expected %q", c.gpus, c.nics, got, c.want)
		}
		if a.GPUs != (c.gpus != "") || a.NICs != (c.nics != "") {
			t.Errorf("%q %q: answers for GPUs %v, NICs %v", c.gpus, c.nics, a.GPUs, a.NICs)
		}
	}
}

// TestNotGiven are devices that are there and must not be given.
func TestNotGiven(t *testing.T) {
	t.Parallel()
	host := readHost(t, "a4-highgpu-8g")
	host.GPUs[2].Excluded = true
	host.NICs = append(host.NICs, discover.NIC{Name: "br0", Kind: discover.Virtual})
	all := All(host)
	if got := given(all); strings.Contains(got, "2 3") || strings.Contains(got, "eth0") || strings.Contains(got, "br0") {
		t.Errorf("all is %s", got)
	}
	if len(all.LeftOut) != 2 {
		t.Errorf("left out: %q, expected GPU 2 and eth0", all.LeftOut)
	}
	if _, err := Lists(host, "2", ""); err == nil || !strings.Contains(err.Error(), "excluded") {
		t.Errorf("an excluded GPU by name: %v", err)
	}
	if _, err := Lists(host, "", "0000:00:05.0"); err == nil || !strings.Contains(err.Error(), "default route") {
		t.Errorf("an uplink by PCI address: %v", err)
	}
	if a, err := Lists(host, "", "br0"); err != nil || given(a) != "br0" {
		t.Errorf("a virtual NIC by name: %q, %v", given(a), err)
	}
}

// TestTwoPorts are two NICs of one PCI function.
func TestTwoPorts(t *testing.T) {
	t.Parallel()
	host := &discover.Host{Devices: discover.Devices{NICs: []discover.NIC{
		{Name: "p0", PCIAddress: "0000:01:00.0"}, {Name: "p1", PCIAddress: "0000:01:00.0"},
	}}}
	if _, err := Lists(host, "", "01:00.0"); err == nil || !strings.Contains(err.Error(), "name one of p0, p1") {
		t.Errorf("an address of two NICs: %v", err)
	}
	a, err := File(host, strings.NewReader(`{"nics":[{"name":"p1","pciAddress":"0000:01:00.0"}]}`), "x")
	if err != nil || given(a) != "p1" {
		t.Errorf("name and address: %q, %v", given(a), err)
	}
}

func TestSyntax(t *testing.T) {
	t.Parallel()
	host := readHost(t, "a4-highgpu-8g")
	for _, list := range []string{",", "0,", "0, 1", "all,0", "0,none", "count=1"} {
		var syntax *SyntaxError
		if _, err := Lists(host, list, ""); !errors.As(err, &syntax) {
			t.Errorf("%q: error %v, expected a SyntaxError", list, err)
		}
	}
	if _, err := Lists(host, "8", ""); errors.As(err, new(*SyntaxError)) || err == nil {
		t.Errorf("an unknown GPU: %v, expected an error that is no SyntaxError", err)
	}
}

func TestFileTooLarge(t *testing.T) {
	t.Parallel()
	if _, err := File(&discover.Host{}, strings.NewReader(strings.Repeat(" ", MaxFile+1)), "x"); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}

func TestPCIAddress(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"8f:00.0": "0000:8f:00.0", "0000:8F:00.0": "0000:8f:00.0", "00000000:8F:00.0": "0000:8f:00.0", "10000:01:00.0": "10000:01:00.0",
		"": "", "0": "", "1:0": "", "gpu0rdma0": "", "8f:00": "", "8f:00.0:": "", "8g:00.0": "", "123456789:8f:00.0": "",
	} {
		if got := pciAddress(s); got != want {
			t.Errorf("%q is %q, expected %q", s, got, want)
		}
	}
}

// FuzzFile makes sure that no allocation file, whatever is in it, gives a device
// that cannot be given, or one twice.
func FuzzFile(f *testing.F) {
	host := readHost(f, "a4-highgpu-8g")
	f.Add(`{"gpus":[{"uuid":"GPU-f538682c-7be3-18c8-91b6-5a3fc69143d0"}],"nics":[{"name":"gpu0rdma0","pciAddress":"0000:91:00.0"}]}`)
	f.Add(`{"gpus":[{"name":"0"},{"name":"0"}],"nics":[{"name":"eth0"}]}`)
	f.Add(`{"gpus":null} x`)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := File(host, strings.NewReader(text), "x")
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, word := range strings.Fields(given(a)) {
			if seen[word] || word == "eth0" {
				t.Errorf("%q gives %s", text, given(a))
			}
			seen[word] = true
		}
	})
}
