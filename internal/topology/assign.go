package topology

import (
	"cmp"
	"math"
	"slices"

	"podrail/pkg/discover"
)

// Nearest gives each GPU a NIC of its own such that all together are as near as
// can be: the worst relation is as good as possible and as rare as possible,
// then the next worst. Of equal ones the first GPUs get the first NICs by name.
// The result has the place of each GPU's NIC; nil if there are too few NICs.
func (m *Map) Nearest(gpus []discover.GPU, nics []discover.NIC) []int {
	if len(nics) < len(gpus) {
		return nil
	}
	costs := m.costs(gpus, nics)
	byName := make([]int, len(nics))
	for i := range nics {
		byName[i] = i
	}
	slices.SortStableFunc(byName, func(a, b int) int { return compareNames(nics[a].Name, nics[b].Name) })
	best, _ := assign(costs)
	for i := range gpus {
		for _, j := range byName {
			fixed := fix(costs, i, j)
			if total, ok := assign(fixed); ok && total == best {
				costs = fixed
				break
			}
		}
	}
	_, places := solve(costs)
	return places
}

// forbidden is the cost of a pair that must not be: more than all others can have
// together, and little enough to be added up.
const forbidden = 1 << 52

// fix makes j the only column for row i.
func fix(costs [][]int64, i, j int) [][]int64 {
	out := make([][]int64, len(costs))
	for r := range costs {
		out[r] = slices.Clone(costs[r])
		for c := range out[r] {
			if (r == i) != (c == j) {
				out[r][c] = forbidden
			}
		}
	}
	return out
}

// costs make one pair of a relation dearer than all pairs of a nearer one.
func (m *Map) costs(gpus []discover.GPU, nics []discover.NIC) [][]int64 {
	weight := []int64{0}
	for range SYS {
		weight = append(weight, max(1, weight[len(weight)-1]*int64(len(gpus)+1)))
	}
	out := make([][]int64, len(gpus))
	for i, g := range gpus {
		for _, n := range nics {
			out[i] = append(out[i], weight[m.Between(g, n)])
		}
	}
	return out
}

// assign is the least total cost, and whether no forbidden pair is in it.
func assign(costs [][]int64) (int64, bool) {
	total, _ := solve(costs)
	return total, total < forbidden
}

// solve finds the assignment of rows to columns with the least total cost, by
// the Hungarian method with potentials: rows join one by one, each along the
// cheapest path of changes. There are no fewer columns than rows.
func solve(costs [][]int64) (total int64, columns []int) {
	rows := len(costs)
	if rows == 0 {
		return 0, []int{}
	}
	cols := len(costs[0])
	u, v := make([]int64, rows+1), make([]int64, cols+1)
	owner, way := make([]int, cols+1), make([]int, cols+1)
	for i := 1; i <= rows; i++ {
		owner[0] = i
		at := 0
		least := slices.Repeat([]int64{math.MaxInt64}, cols+1)
		done := make([]bool, cols+1)
		for owner[at] != 0 {
			done[at] = true
			row, delta, next := owner[at], int64(math.MaxInt64), 0
			for j := 1; j <= cols; j++ {
				if done[j] {
					continue
				}
				if c := costs[row-1][j-1] - u[row] - v[j]; c < least[j] {
					least[j], way[j] = c, at
				}
				if least[j] < delta {
					delta, next = least[j], j
				}
			}
			for j := 0; j <= cols; j++ {
				if done[j] {
					u[owner[j]] += delta
					v[j] -= delta
				} else if j > 0 {
					least[j] -= delta
				}
			}
			at = next
		}
		for at != 0 {
			owner[at] = owner[way[at]]
			at = way[at]
		}
	}
	columns = make([]int, rows)
	for j := 1; j <= cols; j++ {
		if owner[j] != 0 {
			columns[owner[j]-1] = j - 1
			total += costs[owner[j]-1][j-1]
		}
	}
	return total, columns
}

// Choose takes n of the GPUs: those whose nearest NICs are nearest, if nics is
// not nil; then those with most NVLinks between them; those nearest to each
// other; those that leave the others nearest to each other; the first ones.
// It returns nil if there are not as many.
func (m *Map) Choose(gpus []discover.GPU, nics []discover.NIC, n int) []discover.GPU {
	if n > len(gpus) || nics != nil && n > len(nics) {
		return nil
	}
	var best []int
	var least score
	for set := range subsets(len(gpus), n) {
		chosen, rest := split(gpus, set)
		s := score{m.nicCost(chosen, nics), -m.nvlinks(chosen), m.spread(chosen), m.spread(rest)}
		if best == nil || slices.Compare(s[:], least[:]) < 0 {
			best, least = slices.Clone(set), s
		}
	}
	chosen, _ := split(gpus, best)
	return chosen
}

type score [4]int64

func (m *Map) nicCost(gpus []discover.GPU, nics []discover.NIC) int64 {
	if nics == nil {
		return 0
	}
	total, _ := solve(m.costs(gpus, nics))
	return total
}

func (m *Map) nvlinks(gpus []discover.GPU) (sum int64) {
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			sum += int64(m.links.Count(a.PCIAddress, b.PCIAddress))
		}
	}
	return sum
}

func (m *Map) spread(gpus []discover.GPU) (sum int64) {
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			sum += int64(Between(m.GPU(a), m.GPU(b)))
		}
	}
	return sum
}

// mostSubsets bounds the search: 16 GPUs have 12870 subsets of 8. Beyond, only
// neighbours in the order of indices are looked at.
const mostSubsets = 20000

// subsets are the sets of n out of so many numbers, in lexical order.
func subsets(of, n int) func(yield func([]int) bool) {
	count := 1.0
	for i := range n {
		count *= float64(of-i) / float64(i+1)
	}
	return func(yield func([]int) bool) {
		set := make([]int, n)
		for i := range set {
			set[i] = i
		}
		for {
			if !yield(set) {
				return
			}
			i := n - 1
			for i >= 0 && set[i] == of-n+i {
				i--
			}
			if i < 0 {
				return
			}
			if count > mostSubsets {
				i = 0
			}
			for k, first := i, set[i]+1; k < n; k++ {
				set[k] = first + k - i
			}
		}
	}
}

func split(gpus []discover.GPU, set []int) (chosen, rest []discover.GPU) {
	for i, g := range gpus {
		if slices.Contains(set, i) {
			chosen = append(chosen, g)
		} else {
			rest = append(rest, g)
		}
	}
	return chosen, rest
}

// Nearer is a GPU for which there is a nearer NIC than those it was given.
type Nearer struct {
	GPU discover.GPU
	// Given is the nearest that was given, NIC the nearest that there is.
	Given, NIC           discover.NIC
	GivenRelation, Could Relation
}

// Misaligned are the GPUs of a selection that have a nearer NIC on the host than
// all NICs of the selection. Without NICs there is nothing to be nearer than.
func (m *Map) Misaligned(given discover.Devices) []Nearer {
	var out []Nearer
	nics := m.Candidates(given.NICs)
	if len(nics) == 0 {
		return nil
	}
	for _, g := range OnePerGPU(given.GPUs) {
		have := m.nearest(g, nics)
		best := m.nearest(g, m.Candidates(m.host.NICs))
		a, b := m.Between(g, have), m.Between(g, best)
		if b < a {
			out = append(out, Nearer{GPU: g, Given: have, NIC: best, GivenRelation: a, Could: b})
		}
	}
	return out
}

func (m *Map) nearest(g discover.GPU, nics []discover.NIC) discover.NIC {
	return slices.MinFunc(nics, func(a, b discover.NIC) int {
		return cmp.Or(cmp.Compare(m.Between(g, a), m.Between(g, b)), compareNames(a.Name, b.Name))
	})
}

// Candidates are the NICs among these that a GPU's traffic would go over: RDMA
// devices, or where the host has none to give, other hardware NICs; not those
// that the host needs.
func (m *Map) Candidates(nics []discover.NIC) []discover.NIC {
	rdma := slices.ContainsFunc(m.host.NICs, func(n discover.NIC) bool { return len(n.RDMA) > 0 && n.PCIRoot != "" && n.DefaultRoute == "" })
	out := []discover.NIC{}
	for _, n := range nics {
		if n.PCIRoot != "" && n.DefaultRoute == "" && (len(n.RDMA) > 0 || !rdma) {
			out = append(out, n)
		}
	}
	return out
}

// OnePerGPU leaves one of several MIG devices of a GPU: they are in one place.
func OnePerGPU(gpus []discover.GPU) []discover.GPU {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(gpus), func(g discover.GPU) bool {
		twice := g.PCIAddress != "" && seen[g.PCIAddress]
		seen[g.PCIAddress] = true
		return twice
	})
}
