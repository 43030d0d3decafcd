package main

import (
	"encoding/json"
	"io"

	"podrail/internal/allocate"
	"podrail/internal/topology"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
)

func (p *program) topologyCommand() *cli.Command {
	return &cli.Command{
		Name:  "topology",
		Usage: "show how near GPUs and NICs are",
		UsageText: "cdi-gen topology [-o text|json|svg] [--root DIR] [GPU or NIC ...]\n\n" +
			"Example: a picture of this host's PCIe tree\n\n" +
			"   cdi-gen topology -o svg > host.svg",
		Description: "The text is what `nvidia-smi topo -m` prints: all GPUs and RDMA devices, or those that are named\n" +
			"(index, UUID, PCI address, interface, RDMA device).",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`FORMAT`: text, json, svg"},
			rootFlag(),
		},
		Action: p.topology,
	}
}

func (p *program) topology(c *cli.Context) error {
	write, ok := map[string]func(io.Writer, *topology.Map, topology.Only) error{
		"text": writeMatrix,
		"json": writeMatrixJSON,
		"svg":  writePicture,
	}[c.String("output")]
	if !ok {
		return usagef("-o %q: must be text, json or svg", c.String("output"))
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
	m, err := p.topologyMap(root, host)
	if err != nil {
		return err
	}
	return write(p.stdout, m, onlyNamed(named))
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

func writeMatrix(w io.Writer, m *topology.Map, only topology.Only) error {
	return m.Matrix(only).WriteText(w)
}

func writeMatrixJSON(w io.Writer, m *topology.Map, only topology.Only) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(m.Matrix(only))
}

func writePicture(w io.Writer, m *topology.Map, only topology.Only) error {
	return m.WriteSVG(w, only, nil)
}
