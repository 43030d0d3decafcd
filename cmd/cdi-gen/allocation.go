package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"podrail/internal/allocate"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
)

// auto is the --from that asks all sources.
const auto = "auto"

func fromFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "from", Value: auto, Usage: "ask one `SOURCE` what this pod was given: " + strings.Join(allocate.SourceNames(), ", ") + "; auto asks all"},
		&cli.StringFlag{Name: "container", Usage: "`NAME` of the pod's container to write for, where the kubelet lists several with devices"},
	}
}

func (p *program) allocationCommand() *cli.Command {
	return &cli.Command{
		Name:  "allocation",
		Usage: "say what this pod was given, and how that is known",
		UsageText: "cdi-gen allocation [-o table|json] [--from SOURCE] [--container NAME]\n\n" +
			"Example: why does generate fail in this pod?\n\n" +
			"   cdi-gen allocation",
		Description: "Each source says nothing, a count to check against, names of devices, or proof. The first that\n" +
			"names devices counts (*); that another disagrees is an error. Exit status 1 if nothing is certain.\n\n" +
			"dra           files of DRA drivers (KEP-5304) in a container that lists the claim\n" +
			"podresources  the kubelet's socket, with POD_NAME and POD_NAMESPACE in the environment\n" +
			"env           NVIDIA_VISIBLE_DEVICES with UUIDs; PCIDEVICE_* of the SR-IOV device plugin\n" +
			"podinfo       counts: annotations or labels cdi-gen/gpus, cdi-gen/nics in /etc/podinfo\n" +
			"container     device nodes that open where the device cgroup refuses others; NICs of the pod's network",
		Flags: append(fromFlags(),
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: table, json"},
			rootFlag(),
		),
		Action: p.showAllocation,
	}
}

func (p *program) showAllocation(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	write, ok := map[string]func(io.Writer, report) error{"table": reportTable, "json": reportJSON}[c.String("output")]
	if !ok {
		return usagef("-o %q: must be table or json", c.String("output"))
	}
	if err := checkFrom(c); err != nil {
		return err
	}
	root, host, err := p.readHost(c)
	if err != nil {
		return err
	}
	defer root.Close()
	r, _, err := ask(c, root, host)
	return errors.Join(write(p.stdout, r), err)
}

func checkFrom(c *cli.Context) error {
	if from := c.String("from"); from != auto && !slices.Contains(allocate.SourceNames(), from) {
		return usagef("--from %q: must be auto, %s", from, strings.Join(allocate.SourceNames(), ", "))
	}
	return nil
}

// report is what all sources say, and what counts.
type report struct {
	// GPUs and NICs are what was decided.
	GPUs    reportKind     `json:"gpus"`
	NICs    reportKind     `json:"nics"`
	Sources []sourceReport `json:"sources"`
	// Error is why nothing was decided.
	Error string `json:"error,omitempty"`
}

type reportKind struct {
	Source  string   `json:"source,omitempty"`
	Devices []string `json:"devices"`
}

type sourceReport struct {
	allocate.Finding
	Error string `json:"error,omitempty"`
}

// ask asks the sources and decides.
func ask(c *cli.Context, root *discover.Root, host *discover.Host) (r report, answer allocate.Answer, err error) {
	only := c.String("from")
	if only == auto {
		only = ""
	}
	pod := allocate.ThisPod(root, host, c.String("container"))
	findings := allocate.Ask(pod, only)
	for _, f := range findings {
		s := sourceReport{Finding: f}
		if f.Err != nil {
			s.Error = f.Err.Error()
		}
		r.Sources = append(r.Sources, s)
	}
	r.GPUs.Devices, r.NICs.Devices = []string{}, []string{}
	decision, err := allocate.Decide(findings)
	if err == nil {
		answer, err = decision.Answer(pod)
	}
	if err != nil {
		r.Error = err.Error()
		return r, answer, err
	}
	r.GPUs = reportKind{decision.GPUSource, append(r.GPUs.Devices, decision.GPUs.Devices...)}
	r.NICs = reportKind{decision.NICFrom, append(r.NICs.Devices, decision.NICs.Devices...)}
	return r, answer, nil
}

func reportJSON(w io.Writer, r report) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func reportTable(w io.Writer, r report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SOURCE\tKIND\tSAYS\tDEVICES\tHOW")
	for _, s := range r.Sources {
		if s.Error != "" {
			fmt.Fprintf(t, "%s\t\terror\t-\t%s\n", s.Source, s.Error)
			continue
		}
		reportRow(t, s.Source, "gpus", s.GPUs, r.GPUs.Source)
		reportRow(t, s.Source, "nics", s.NICs, r.NICs.Source)
	}
	return t.Flush()
}

func reportRow(w io.Writer, source, kind string, said allocate.Said, winner string) {
	mark := ""
	if source == winner {
		mark = "*"
	}
	devices := "-"
	if said.Weight != allocate.Silent {
		devices = said.String()
	}
	fmt.Fprintf(w, "%s\t%s\t%s%s\t%s\t%s\n", source, kind, said.Weight, mark, devices, said.How)
}

// askSources is the allocation where no flag says what was given.
func (p *program) askSources(c *cli.Context, root *discover.Root, host *discover.Host) (allocate.Answer, error) {
	_, answer, err := ask(c, root, host)
	if none := (*allocate.ErrNone)(nil); errors.As(err, &none) && !root.Live() {
		none.Tried = nil // of another machine nothing can be known
	}
	if err == nil {
		p.log.Info("allocation", "how", answer.How)
	}
	return answer, err
}
