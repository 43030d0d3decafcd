package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"podrail/internal/resourceslice"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
	"sigs.k8s.io/yaml"
)

func (p *program) listCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the GPUs and NICs of this host",
		UsageText: "cdi-gen list [-o table|json|yaml|resourceslice] [--root DIR]\n\n" +
			"Example: the UUIDs of all GPUs\n\n" +
			"   cdi-gen list -o json | jq -r '.gpus[].uuid'",
		Description: "JSON and YAML are an object with gpus and nics, which --allocation of `cdi-gen generate` takes.\n" +
			"ResourceSlices are the devices as the DRA drivers of NVIDIA and DraNet publish them; cdi-claim takes them.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: table, json, yaml, resourceslice"},
			rootFlag(),
		},
		Action: p.list,
	}
}

func (p *program) list(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	write, ok := map[string]func(io.Writer, *discover.Host) error{
		"table": writeTable,
		"json":  writeJSON,
		"yaml":  writeYAML,
		// Needs the node's name, too.
		"resourceslice": nil,
	}[c.String("output")]
	if !ok {
		return usagef("-o %q: must be table, json, yaml or resourceslice", c.String("output"))
	}
	root, host, err := p.readHost(c)
	if err != nil {
		return err
	}
	defer root.Close()
	if write == nil {
		return writeSlices(p.stdout, host, resourceslice.NodeName(root))
	}
	return write(p.stdout, host)
}

func writeJSON(w io.Writer, host *discover.Host) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(host)
}

func writeYAML(w io.Writer, host *discover.Host) error {
	data, err := yaml.Marshal(host)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// writeSlices writes a YAML document for each slice, as kubectl takes them.
func writeSlices(w io.Writer, host *discover.Host, node string) error {
	for _, slice := range resourceslice.Make(host, node) {
		data, err := yaml.Marshal(slice)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "---\n%s", data); err != nil {
			return err
		}
	}
	return nil
}

func writeTable(w io.Writer, host *discover.Host) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		for i, cell := range cells {
			if cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	row("GPU", "PCI", "NUMA", "MODEL", "UUID", "NOTE")
	for _, g := range host.GPUs {
		row(g.Name, g.PCIAddress, numa(g.NUMANode), g.Model, g.UUID, gpuNote(g))
	}
	fmt.Fprintln(t)
	row("NIC", "PCI", "NUMA", "KIND", "RDMA", "STATE", "MTU", "MAC", "ADDRESSES", "NOTE")
	for _, n := range host.NICs {
		row(n.Name, n.PCIAddress, numa(n.NUMANode), nicKind(n), rdmaNames(n), n.State, mtu(n), n.MAC, addresses(n), nicNote(n))
	}
	return t.Flush()
}

func gpuNote(g discover.GPU) string {
	switch {
	case g.Excluded:
		return "excluded by the driver"
	case len(g.Nodes) == 0:
		return "no device node"
	}
	return ""
}

func nicNote(n discover.NIC) string {
	if n.DefaultRoute != "" {
		return "stays: " + n.DefaultRoute
	}
	return ""
}

func nicKind(n discover.NIC) string {
	if n.Kind == discover.Virtual && n.LinkKind != "" {
		return n.LinkKind
	}
	return string(n.Kind)
}

func rdmaNames(n discover.NIC) string {
	var out []string
	for _, r := range n.RDMA {
		out = append(out, r.Name)
	}
	return strings.Join(out, ",")
}

func addresses(n discover.NIC) string {
	var out []string
	for _, a := range n.Addresses {
		out = append(out, a.String())
	}
	return strings.Join(out, ",")
}

func numa(node int) string {
	if node < 0 {
		return ""
	}
	return strconv.Itoa(node)
}

func mtu(n discover.NIC) string {
	if n.MTU == 0 {
		return ""
	}
	return strconv.Itoa(n.MTU)
}
