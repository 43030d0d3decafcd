package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"podrail/internal/allocate"
	"podrail/internal/topology"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
)

// choosesFree says that cdi-gen is to choose among the free devices.
func choosesFree(c *cli.Context) bool {
	return c.Bool("align") && c.IsSet("gpus") ||
		strings.HasPrefix(c.String("gpus"), "count=") || strings.HasPrefix(c.String("nics"), "count=")
}

// checkAlign refuses --align where it means nothing. Without --gpus somebody else
// chose, and it says what would have been aligned.
func checkAlign(c *cli.Context) error {
	switch {
	case !c.Bool("align"):
		return nil
	case c.Bool("all"):
		return usagef("--align chooses NICs for some GPUs: --all has all of both")
	case c.IsSet("nics"):
		return usagef("--align chooses the NICs: leave --nics out, or --align")
	}
	return nil
}

// choose answers lists of which some mean "so many free ones".
func (p *program) choose(c *cli.Context, root *discover.Root, host *discover.Host, others allocate.Taken) (allocate.Answer, error) {
	m, err := p.topologyMap(root, host)
	if err != nil {
		return allocate.Answer{}, err
	}
	free := allocate.Free(host, others)
	gpus, nics := c.String("gpus"), c.String("nics")
	var answer allocate.Answer
	var how []string
	if gpus != "" {
		var from []discover.NIC
		if c.Bool("align") {
			from = m.Candidates(free.NICs)
		}
		if answer, err = chooseGPUs(host, m, gpus, free, from); err != nil {
			return answer, fmt.Errorf("--gpus %s: %w", gpus, err)
		}
		how = append(how, "--gpus "+gpus)
	}
	if nics != "" {
		a, err := chooseNICs(host, m, nics, free)
		if err != nil {
			return answer, fmt.Errorf("--nics %s: %w", nics, err)
		}
		answer.Devices.NICs, answer.NICs, answer.NamedNICs = a.Devices.NICs, true, a.NamedNICs
		answer.LeftOut = append(answer.LeftOut, a.LeftOut...)
		how = append(how, "--nics "+nics)
	}
	if c.Bool("align") {
		if answer.Devices.NICs, err = nearestNICs(m, answer.Devices.GPUs, free); err != nil {
			return answer, fmt.Errorf("--align: %w", err)
		}
		answer.NICs, answer.NamedNICs = true, true
		how = append(how, "--align")
	}
	answer.How = strings.Join(how, " ")
	return answer, nil
}

func chooseGPUs(host *discover.Host, m *topology.Map, list string, free discover.Devices, nics []discover.NIC) (allocate.Answer, error) {
	n, counted, err := allocate.Count(list)
	if err != nil || !counted {
		if err == nil {
			return listed(allocate.Lists(host, list, ""))
		}
		return allocate.Answer{}, err
	}
	chosen := m.Choose(whole(free.GPUs), nics, n)
	if chosen == nil {
		if nics != nil && len(nics) < n && len(whole(free.GPUs)) >= n {
			return allocate.Answer{}, fmt.Errorf("there are %s to go with them", count(len(nics), "free NIC"))
		}
		return allocate.Answer{}, fmt.Errorf("there are %s of %d", count(len(whole(free.GPUs)), "free GPU"), len(whole(host.GPUs)))
	}
	return allocate.Answer{Devices: discover.Devices{GPUs: chosen}, GPUs: true, NamedGPUs: true}, nil
}

func chooseNICs(host *discover.Host, m *topology.Map, list string, free discover.Devices) (allocate.Answer, error) {
	n, counted, err := allocate.Count(list)
	if err != nil || !counted {
		if err == nil {
			return listed(allocate.Lists(host, "", list))
		}
		return allocate.Answer{}, err
	}
	nics := m.Candidates(free.NICs)
	if len(nics) < n {
		return allocate.Answer{}, fmt.Errorf("there are %s", count(len(nics), "free NIC"))
	}
	return allocate.Answer{Devices: discover.Devices{NICs: nics[:n]}, NICs: true, NamedNICs: true}, nil
}

// listed takes the flag's name off an error: the caller adds it for all.
func listed(a allocate.Answer, err error) (allocate.Answer, error) {
	if inner, ok := err.(interface{ Unwrap() error }); ok {
		return a, inner.Unwrap()
	}
	return a, err
}

// whole are the GPUs that are not cut into MIG devices, where there are any: so
// many free ones are then of those.
func whole(gpus []discover.GPU) []discover.GPU {
	out := slices.DeleteFunc(slices.Clone(gpus), func(g discover.GPU) bool { return g.MIG != nil })
	if len(out) == 0 {
		return gpus
	}
	return out
}

// nearestNICs are a free NIC for each GPU, in the inventory's order.
func nearestNICs(m *topology.Map, gpus []discover.GPU, free discover.Devices) ([]discover.NIC, error) {
	gpus = topology.OnePerGPU(gpus)
	nics := m.Candidates(free.NICs)
	places := m.Nearest(gpus, nics)
	if places == nil {
		return nil, fmt.Errorf("there are %s for %s", count(len(nics), "free NIC"), count(len(gpus), "GPU"))
	}
	slices.Sort(places)
	out := []discover.NIC{}
	for _, i := range places {
		out = append(out, nics[i])
	}
	return out, nil
}

// warnMisaligned says for which GPUs there is a nearer NIC than those given.
func (p *program) warnMisaligned(host *discover.Host, given discover.Devices) []topology.Nearer {
	misaligned := topology.New(host, nil).Misaligned(given)
	for _, n := range misaligned {
		p.log.Warn("a nearer NIC is on this host than those given",
			"gpu", n.GPU.Name, "given", nicAt(n.Given, n.GivenRelation), "nearest", nicAt(n.NIC, n.Could))
	}
	return misaligned
}

func nicAt(n discover.NIC, r topology.Relation) string {
	return fmt.Sprintf("%s (%v)", n.Name, r)
}

// adviseClaim prints the claim that would have given an aligned set. What
// Kubernetes has allocated cannot be changed here.
func (p *program) adviseClaim(given discover.Devices, misaligned []topology.Nearer) {
	if len(misaligned) == 0 {
		return
	}
	for _, n := range misaligned {
		if n.Could > topology.PHB {
			p.log.Warn("no pcieRoot constraint could align this: not every GPU has a NIC below its host bridge", "gpu", n.GPU.Name)
			return
		}
	}
	p.log.Warn("an allocation cannot be changed here; on stderr is a claim that the scheduler would align")
	writeClaim(p.stderr, len(topology.OnePerGPU(given.GPUs)))
}

// writeClaim writes a claim for n pairs of a GPU and an RDMA NIC, each pair below
// one host bridge.
func writeClaim(w io.Writer, n int) {
	var requests, constraints strings.Builder
	for i := range n {
		fmt.Fprintf(&requests, `      - name: gpu%d
        exactly:
          deviceClassName: gpu.nvidia.com
      - name: nic%d
        exactly:
          deviceClassName: dranet
          selectors:
          - cel:
              expression: device.attributes["dra.net"].rdma == true
`, i, i)
		fmt.Fprintf(&constraints, `      - requests: [gpu%d, nic%d]
        matchAttribute: resource.kubernetes.io/pcieRoot
`, i, i)
	}
	fmt.Fprintf(w, `apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: aligned
spec:
  spec:
    devices:
      requests:
%s      constraints:
%s`, requests.String(), constraints.String())
}
