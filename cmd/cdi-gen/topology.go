package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"podrail/internal/allocate"
	"podrail/internal/topology"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
)

func (p *program) topologyCommand() *cli.Command {
	return &cli.Command{
		Name:  "topology",
		Usage: "show how near GPUs and NICs are",
		UsageText: "cdi-gen topology [-o text|json|svg] [--owners] [--check] [--root DIR] [GPU or NIC ...]\n\n" +
			"Example: a picture of this host's PCIe tree, with whose each device is\n\n" +
			"   cdi-gen topology -o svg --owners > host.svg",
		Description: "The text is what `nvidia-smi topo -m` prints: all GPUs and RDMA devices, or those that are named\n" +
			"(index, UUID, PCI address, interface, RDMA device). --check looks at what they would be as one\n" +
			"allocation, or else at each that `cdi-gen generate --name` has made on this host.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`FORMAT`: text, json, svg"},
			&cli.BoolFlag{Name: "owners", Usage: "show in the picture who holds what", DisableDefaultText: true},
			&cli.BoolFlag{Name: "check", Usage: "fail if a GPU has a nearer NIC than those it was given", DisableDefaultText: true},
			rootFlag(),
		},
		Action: p.topology,
	}
}

func (p *program) topology(c *cli.Context) error {
	write, ok := map[string]func(io.Writer, *topology.Map, topology.Only, topology.Owners) error{
		"text": writeMatrix,
		"json": writeMatrixJSON,
		"svg":  writePicture,
	}[c.String("output")]
	switch {
	case !ok:
		return usagef("-o %q: must be text, json or svg", c.String("output"))
	case c.Bool("owners") && c.String("output") != "svg":
		return usagef("--owners needs -o svg")
	case c.Bool("check") && (c.IsSet("output") || c.Bool("owners")):
		return usagef("--check prints no topology: leave -o and --owners out")
	}
	root, host, err := p.readHost(c)
	if err != nil {
		return err
	}
	defer root.Close()
	named, err := allocate.Named(host, c.Args().Slice())
	if err != nil {
		return err
	}
	taken, err := allocate.ReadTaken(root)
	if err != nil && (c.Bool("owners") || c.Bool("check")) {
		return err
	}
	if c.Bool("check") {
		return p.checkTopology(host, named, taken)
	}
	m, err := p.topologyMap(root, host)
	if err != nil {
		return err
	}
	var owners topology.Owners
	if c.Bool("owners") {
		owners = ownersOf(taken)
	}
	return write(p.stdout, m, onlyNamed(named), owners)
}

func ownersOf(taken allocate.Taken) topology.Owners {
	return func(gpu *discover.GPU, nic *discover.NIC) string {
		if gpu != nil {
			return taken.GPU(*gpu)
		}
		return taken.NIC(*nic)
	}
}

// checkTopology says of each GPU whether it has a nearer NIC than those of its
// allocation: the devices named, or else all that are taken.
func (p *program) checkTopology(host *discover.Host, named discover.Devices, taken allocate.Taken) error {
	if len(named.GPUs)+len(named.NICs) > 0 {
		taken = allocate.Taken{"": named}
	}
	if len(taken) == 0 {
		p.log.Info("nothing is taken on this host, and nothing was named: there is nothing to check")
	}
	m := topology.New(host, nil)
	bad := 0
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		prefix := ""
		if name != "" {
			prefix = name + ": "
		}
		for _, n := range m.Misaligned(taken[name]) {
			bad++
			fmt.Fprintf(p.stdout, "%sGPU %s has %s, and %s is nearer\n", prefix, n.GPU.Name, nicAt(n.Given, n.GivenRelation), nicAt(n.NIC, n.Could))
		}
	}
	if bad > 0 {
		return fmt.Errorf("not aligned: %s", count(bad, "GPU"))
	}
	return nil
}

// topologyMap is what is near what on a host.
func (p *program) topologyMap(root *discover.Root, host *discover.Host) (*topology.Map, error) {
	links, err := topology.ReadLinks(root, host)
	if err != nil {
		return nil, err
	}
	return topology.New(host, links), nil
}

// onlyNamed shows the devices named; none named is all.
func onlyNamed(named discover.Devices) topology.Only {
	if len(named.GPUs)+len(named.NICs) == 0 {
		return nil
	}
	return func(gpu *discover.GPU, nic *discover.NIC) bool {
		for _, g := range named.GPUs {
			if gpu != nil && g.UUID == gpu.UUID {
				return true
			}
		}
		for _, n := range named.NICs {
			if nic != nil && n.Name == nic.Name {
				return true
			}
		}
		return false
	}
}

func writeMatrix(w io.Writer, m *topology.Map, only topology.Only, _ topology.Owners) error {
	return m.Matrix(only).WriteText(w)
}

func writeMatrixJSON(w io.Writer, m *topology.Map, only topology.Only, _ topology.Owners) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(m.Matrix(only))
}

func writePicture(w io.Writer, m *topology.Map, only topology.Only, owners topology.Owners) error {
	return m.WriteSVG(w, only, owners)
}
