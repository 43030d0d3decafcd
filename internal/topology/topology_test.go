package topology_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"podrail/internal/golden"
	"podrail/internal/topology"
	"podrail/pkg/discover"

	"github.com/google/go-cmp/cmp"
)

const hosts = "../../testdata/hosts"

func read(t testing.TB, name string) (*discover.Host, *topology.Map) {
	t.Helper()
	root, err := discover.OpenRoot(filepath.Join(hosts, name))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	host, err := discover.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	links, err := topology.ReadLinks(root, host)
	if err != nil {
		t.Fatal(err)
	}
	return host, topology.New(host, links)
}

func text(t *testing.T, m *topology.Map) string {
	t.Helper()
	var out bytes.Buffer
	if err := m.Matrix(nil).WriteText(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestPublishedMatrix compares with what somebody published of a real
// a4-highgpu-8g. Its tabs had become spaces, so fields are compared.
func TestPublishedMatrix(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/a4-highgpu-8g.published")
	if err != nil {
		t.Fatal(err)
	}
	_, m := read(t, "a4-highgpu-8g")
	if diff := cmp.Diff(fields(string(want)), fields(text(t, m))); diff != "" {
		t.Errorf("(-published +got)\n%s", diff)
	}
}

func fields(s string) [][]string {
	var out [][]string
	for line := range strings.Lines(strings.TrimSpace(s)) {
		out = append(out, strings.Fields(line))
	}
	return out
}

// TestRealBytes compares with what nvidia-smi wrote on the real machine that
// the tree was read off.
func TestRealBytes(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/h200-x2.nvidia-smi")
	if err != nil {
		t.Fatal(err)
	}
	_, m := read(t, "h200-x2")
	if diff := cmp.Diff(string(want), text(t, m)); diff != "" {
		t.Errorf("(-nvidia-smi +got)\n%s", diff)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a100-mig", "a4-highgpu-8g", "infiniband-4vf", "no-devices", "qemu-pcie"} {
		_, m := read(t, name)
		golden.Check(t, "testdata/"+name+".txt", []byte(text(t, m)))
	}
}

func TestSVG(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a4-highgpu-8g", "h200-x2", "infiniband-4vf", "no-devices", "qemu-pcie"} {
		_, m := read(t, name)
		var owners topology.Owners
		if name == "a4-highgpu-8g" {
			owners = func(gpu *discover.GPU, nic *discover.NIC) string {
				switch {
				case gpu != nil && gpu.Index < 2 || nic != nil && strings.HasPrefix(nic.Name, "gpu1"):
					return "job1"
				case gpu != nil && gpu.Index == 6:
					return `<b>&"`
				}
				return ""
			}
		}
		var out bytes.Buffer
		if err := m.WriteSVG(&out, nil, owners); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+name+".svg", out.Bytes())
	}
}

// TestRealTree has every relation, between functions whose places in sysfs are
// a running kernel's. The answers are written by hand, from the machine's plan.
func TestRealTree(t *testing.T) {
	t.Parallel()
	host, m := read(t, "qemu-pcie")
	want := map[string]topology.Relation{
		// One switch, with two functions of the NIC.
		"0 eth1": topology.PIX, "0 eth6": topology.PIX, "0 eth7": topology.PIX,
		"0 eth5": topology.PXB, // a switch behind the switch
		"0 eth2": topology.PHB, // another root port of the same host bridge
		"0 eth0": topology.SYS, "0 eth4": topology.SYS, "0 eth3": topology.SYS,
		"1 eth0": topology.PIX,
		"1 eth4": topology.NODE, // another host bridge of the same node, no switch
		"1 eth1": topology.SYS,
		"1 eth3": topology.SYS, // on the node that nobody names
	}
	for _, g := range host.GPUs {
		for _, n := range host.NICs {
			key := g.Name + " " + n.Name
			if relation, ok := want[key]; ok && m.Between(g, n) != relation {
				t.Errorf("%s: %v, expected %v", key, m.Between(g, n), relation)
			}
			delete(want, key)
		}
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}

func TestBetween(t *testing.T) {
	t.Parallel()
	at := func(root string, numa int, path ...string) topology.Place {
		return topology.Place{Root: root, Path: path, NUMANode: numa}
	}
	port := at("pci0000:00", 0, "p1", "g")
	cases := []struct {
		name string
		a, b topology.Place
		want topology.Relation
	}{
		{"itself", port, port, topology.Self},
		{"two functions below one root port", port, at("pci0000:00", 0, "p1", "n"), topology.PIX},
		{"two root ports", port, at("pci0000:00", 0, "p2", "n"), topology.PHB},
		{"both on the root bus, as in many virtual machines", at("pci0000:00", -1, "g"), at("pci0000:00", -1, "n"), topology.PHB},
		{"two host bridges, nodes unknown", at("pci0000:00", -1, "g"), at("pci0000:80", -1, "n"), topology.SYS},
		{"two host bridges of a node", at("pci0000:00", 1, "g"), at("pci0000:80", 1, "n"), topology.NODE},
		{"a bridge behind one of the ports", at("pci0000:00", 0, "p", "u", "d1", "g"), at("pci0000:00", 0, "p", "u", "d2", "b", "n"), topology.PXB},
		{"nowhere", topology.Place{NUMANode: 0}, topology.Place{NUMANode: 0}, topology.SYS},
	}
	for _, c := range cases {
		if got := topology.Between(c.a, c.b); got != c.want {
			t.Errorf("%s: %v, expected %v", c.name, got, c.want)
		}
		if got := topology.Between(c.b, c.a); got != c.want {
			t.Errorf("%s, the other way: %v, expected %v", c.name, got, c.want)
		}
	}
}

// TestNUMA is a machine whose firmware names no node for the devices: with
// one node they are all of it.
func TestNUMA(t *testing.T) {
	t.Parallel()
	host := &discover.Host{Devices: discover.Devices{
		GPUs: []discover.GPU{{Name: "0", PCIRoot: "pci0000:00", PCIPath: []string{"g"}, NUMANode: -1}},
		NICs: []discover.NIC{{Name: "n", PCIRoot: "pci0001:00", PCIPath: []string{"n"}, NUMANode: -1}},
	}}
	for _, c := range []struct {
		nodes []discover.NUMANode
		want  topology.Relation
		row   string
	}{
		{nil, topology.SYS, "GPU0\t X \tN/A\tN/A\t\tN/A\n"},
		{[]discover.NUMANode{{ID: 0, CPUs: "0-3"}}, topology.NODE, "GPU0\t X \t0-3\t0\t\tN/A\n"},
		{[]discover.NUMANode{{ID: 0, CPUs: "0-3,8-11"}, {ID: 1, CPUs: "4-7,12"}}, topology.SYS, "GPU0\t X \t0-12\t0-1\t\tN/A\n"},
	} {
		host.NUMANodes = c.nodes
		m := topology.New(host, nil)
		if got := m.Between(host.GPUs[0], host.NICs[0]); got != c.want {
			t.Errorf("%v: %v, expected %v", c.nodes, got, c.want)
		}
		if !strings.Contains(text(t, m), c.row) {
			t.Errorf("%v: %q has no %q", c.nodes, text(t, m), c.row)
		}
	}
}

func TestNVLinkFile(t *testing.T) {
	t.Parallel()
	host := &discover.Host{}
	for content, want := range map[string]string{
		"# none\n\n":               "map[]",
		"4 b a\n2 a c # twisted\n": "map[[a b]:4 [a c]:2]",
		"x a b":                    "line 1: must be a number",
		"\n0 a b":                  "line 2: must be a number",
		"3 a":                      "line 1: must be a number",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "nvlink"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		root, err := discover.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		links, err := topology.ReadLinks(root, host)
		if got := fmt.Sprint(map[[2]string]int(links), err); !strings.Contains(got, want) {
			t.Errorf("%q: %s, expected %s", content, got, want)
		}
	}
}

func ExampleBetween() {
	gpu := topology.Place{Root: "pci0000:8c", Path: []string{"0000:8c:00.0", "0000:8d:00.0", "0000:8e:00.0", "0000:8f:00.0"}}
	nic := topology.Place{Root: "pci0000:8c", Path: []string{"0000:8c:00.0", "0000:8d:00.0", "0000:8e:02.0", "0000:91:00.0"}}
	fmt.Println(topology.Between(gpu, nic))
	// Output: PIX
}
