package topology_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"podrail/internal/topology"
	"podrail/pkg/discover"
)

// random is a host with devices at random places of a small tree.
func random(r *rand.Rand, gpus, nics int) *discover.Host {
	h := &discover.Host{NUMANodes: []discover.NUMANode{{ID: 0}, {ID: 1}}}
	place := func(name string) (root string, path []string, node int) {
		node, bridge := r.IntN(2), r.IntN(2)
		root = fmt.Sprintf("pci0000:%d%d", node, bridge)
		port := fmt.Sprintf("%s-%d", root, r.IntN(2))
		return root, []string{port, port + "u", port + "d" + name, name}, node
	}
	for i := range gpus {
		g := discover.GPU{Name: fmt.Sprint(i), Index: i, UUID: fmt.Sprint("GPU-", i), PCIAddress: fmt.Sprint("g", i)}
		g.PCIRoot, g.PCIPath, g.NUMANode = place(g.PCIAddress)
		h.GPUs = append(h.GPUs, g)
	}
	for i := range nics {
		n := discover.NIC{Name: fmt.Sprint("nic", i), RDMA: []discover.RDMADevice{{Name: fmt.Sprint("mlx5_", i)}}}
		n.PCIRoot, n.PCIPath, n.NUMANode = place(n.Name)
		h.NICs = append(h.NICs, n)
	}
	return h
}

// worst is how good an assignment is: its relations, the worst first.
func worst(m *topology.Map, h *discover.Host, places []int) []topology.Relation {
	var out []topology.Relation
	for i, j := range places {
		out = append(out, m.Between(h.GPUs[i], h.NICs[j]))
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out
}

// TestNearest tries all assignments: none is better, and of those as good none
// comes earlier in the order of names.
func TestNearest(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		gpus := 1 + r.IntN(4)
		h := random(r, gpus, gpus+r.IntN(3))
		m := topology.New(h, nil)
		got := m.Nearest(h.GPUs, h.NICs)
		var want []int
		var search func(places []int)
		search = func(places []int) {
			if len(places) == gpus {
				if want == nil || slices.Compare(worst(m, h, places), worst(m, h, want)) < 0 {
					want = slices.Clone(places)
				}
				return
			}
			for j := range h.NICs {
				if !slices.Contains(places, j) {
					search(append(slices.Clone(places), j))
				}
			}
		}
		search(nil)
		if !slices.Equal(got, want) {
			t.Fatalf("%v is %v, expected %v: %v", got, worst(m, h, got), want, worst(m, h, want))
		}
	}
}

func TestNearestTooFew(t *testing.T) {
	t.Parallel()
	h := random(rand.New(rand.NewPCG(1, 2)), 2, 1)
	if got := topology.New(h, nil).Nearest(h.GPUs, h.NICs); got != nil {
		t.Errorf("two GPUs, one NIC: %v", got)
	}
}

// TestChoose takes what a person would take of an a4-highgpu-8g on which some
// is taken.
func TestChoose(t *testing.T) {
	t.Parallel()
	host, m := read(t, "a4-highgpu-8g")
	cases := []struct {
		n                    int
		takenGPUs, takenNICs string
		want                 string
	}{
		{1, "", "", "0"},
		{2, "", "", "0 1"},
		{1, "0", "0", "1"},        // not one of a whole pair
		{2, "0", "0", "2 3"},      // a pair on one switch
		{2, "0 2 4 6", "", "1 3"}, // no pair left: one NUMA node
		{2, "", "0 1", "2 3"},     // GPUs 0 and 1 have no NIC left
		{4, "0", "", "4 5 6 7"},
		{3, "", "", "0 1 2"},
		{8, "", "", "0 1 2 3 4 5 6 7"},
		{8, "3", "", ""},
		{2, "", "0 1 2 3 4 5 6", ""},
	}
	for _, c := range cases {
		gpus := slices.DeleteFunc(slices.Clone(host.GPUs), func(g discover.GPU) bool {
			return slices.Contains(strings.Fields(c.takenGPUs), g.Name)
		})
		nics := slices.DeleteFunc(m.Candidates(host.NICs), func(n discover.NIC) bool {
			return slices.Contains(strings.Fields(c.takenNICs), n.RDMA[0].Name[5:])
		})
		var got []string
		for _, g := range m.Choose(gpus, nics, c.n) {
			got = append(got, g.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%d, GPUs %q and NICs %q taken: %v, expected %s", c.n, c.takenGPUs, c.takenNICs, got, c.want)
		}
	}
}

// TestChooseMany is more GPUs than all subsets can be looked at of.
func TestChooseMany(t *testing.T) {
	t.Parallel()
	h := random(rand.New(rand.NewPCG(3, 4)), 64, 64)
	if got := topology.New(h, nil).Choose(h.GPUs, h.NICs, 32); len(got) != 32 {
		t.Errorf("%d GPUs", len(got))
	}
}

func BenchmarkNearest16(b *testing.B) {
	h := random(rand.New(rand.NewPCG(1, 2)), 16, 16)
	m := topology.New(h, nil)
	for b.Loop() {
		m.Nearest(h.GPUs, h.NICs)
	}
}

func BenchmarkChoose8of16(b *testing.B) {
	h := random(rand.New(rand.NewPCG(1, 2)), 16, 16)
	m := topology.New(h, nil)
	for b.Loop() {
		m.Choose(h.GPUs, h.NICs, 8)
	}
}
