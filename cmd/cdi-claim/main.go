// Cdi-claim evaluates Kubernetes' claims for devices (DRA) against this host's,
// without Kubernetes, and prints an allocation for cdi-gen. See `cdi-claim --help`.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"

	"podrail/internal/allocate"
	"podrail/internal/claim"
	"podrail/internal/resourceslice"
	"podrail/pkg/cdi"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
)

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// program is one run: where it reads and writes.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger
}

// usageError is about how cdi-claim was called.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// run is main without the process.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{stdin: stdin, stdout: stdout, stderr: stderr}
	p.log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	err := p.app().RunContext(context.Background(), args)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(stderr, "cdi-claim: %v\n", err)
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// withoutTime leaves the time out: a person reads the messages now.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey && len(groups) == 0 {
		return slog.Attr{}
	}
	return a
}

func (p *program) app() *cli.App {
	return &cli.App{
		Name:  "cdi-claim",
		Usage: "evaluate Kubernetes' device claims (DRA) against this host, without Kubernetes",
		UsageText: "cdi-claim -f FILE [-f FILE ...] [OPTION ...]\n\n" +
			"Example: devices for a job, and a container that has them\n\n" +
			"   cdi-claim -f claim.yaml --name job1 | cdi-gen generate --allocation - --name job1\n" +
			"   podman run --device nvidia.com/gpu=job1-all --device dra.net/nic=job1-all IMAGE",
		Description: "The files hold ResourceClaims and ResourceClaimTemplates, and DeviceClasses that are not built in\n" +
			"(dranet, gpu.nvidia.com, mig.nvidia.com), of resource.k8s.io/v1, v1beta2 or v1beta1. All claims get devices, or none.\n" +
			"What `cdi-gen generate --name` has taken is not given again; cdi-claim itself takes nothing.\n" +
			"When a claim cannot be met, stderr says how many devices were left after each step.",
		HideHelpCommand: true,
		HideVersion:     true,
		// File names may have commas.
		DisableSliceFlagSeparator: true,
		Reader:                    p.stdin,
		Writer:                    p.stdout,
		ErrWriter:                 p.stderr,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "filename", Aliases: []string{"f"}, Usage: "`FILE` of claims and classes; - is stdin; may be repeated"},
			&cli.StringFlag{Name: "root", Value: "/", Usage: "`DIR` that stands for this host's /; with another nothing live is asked"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` that will be given to cdi-gen generate: what it has already is free for it"},
			&cli.StringFlag{Name: "inventory", Usage: "`FILE` of one node's ResourceSlices instead of this host's devices"},
			&cli.StringSliceFlag{Name: "taken", Usage: "JSON `FILE` of devices that are taken, too, in the form of an allocation; may be repeated"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "json", Usage: "`FORMAT`: json, for cdi-gen; table"},
		},
		Action:         p.claim,
		OnUsageError:   func(_ *cli.Context, err error, _ bool) error { return usagef("%w: see cdi-claim --help", err) },
		ExitErrHandler: func(*cli.Context, error) {},
	}
}

func (p *program) claim(c *cli.Context) error {
	names := append(c.StringSlice("filename"), c.Args().Slice()...)
	write, ok := map[string]func(io.Writer, *claim.Result) error{"json": writeAllocation, "table": writeTable}[c.String("output")]
	switch {
	case len(names) == 0:
		return usagef("no claims: give -f FILE; see cdi-claim --help")
	case !ok:
		return usagef("-o %q: must be json or table", c.String("output"))
	}
	if err := cdi.ValidateName(c.String("name")); err != nil {
		return usagef("--%w", err)
	}
	var files []claim.File
	for _, name := range names {
		data, err := p.read(name)
		if err != nil {
			return err
		}
		files = append(files, claim.File{Name: name, Data: data})
	}
	inventory, taken, err := p.inventory(c)
	if err != nil {
		return err
	}
	result, err := claim.Allocate(c.Context, inventory, taken, files)
	if err != nil {
		return err
	}
	for _, note := range result.Notes {
		p.log.Info(note)
	}
	return write(p.stdout, result)
}

// read reads a file, or stdin, and no more than can be an input.
func (p *program) read(name string) ([]byte, error) {
	from := p.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	return io.ReadAll(io.LimitReader(from, claim.MaxFile+1))
}

// inventory are the devices to give, and whose each is.
func (p *program) inventory(c *cli.Context) (*claim.Inventory, func(claim.Device) string, error) {
	root, err := discover.OpenRoot(c.String("root"))
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	var inventory *claim.Inventory
	if name := c.String("inventory"); name != "" {
		data, err := p.read(name)
		if err != nil {
			return nil, nil, err
		}
		if inventory, err = claim.Slices(claim.File{Name: name, Data: data}); err != nil {
			return nil, nil, err
		}
	} else {
		host, err := discover.Read(root)
		if err != nil {
			return nil, nil, err
		}
		for _, problem := range host.Problems {
			p.log.Warn("could not be read fully", "device", problem.Device, "problem", problem.Text)
		}
		inventory = claim.Host(host, resourceslice.NodeName(root))
	}
	taken := allocate.Taken{}
	if c.String("inventory") == "" {
		if taken, err = allocate.ReadTaken(root); err != nil {
			return nil, nil, fmt.Errorf("what is taken on this host is not known: %w", err)
		}
		taken = taken.Without(c.String("name"))
	}
	for _, name := range c.StringSlice("taken") {
		data, err := p.read(name)
		if err != nil {
			return nil, nil, err
		}
		if taken[name], err = allocate.ReadDevices(bytes.NewReader(data)); err != nil {
			return nil, nil, fmt.Errorf("--taken %s: %w", name, err)
		}
	}
	return inventory, holder(taken), nil
}

// holder says who has a device.
func holder(taken allocate.Taken) func(claim.Device) string {
	return func(d claim.Device) string {
		switch {
		case d.GPU != nil:
			return taken.GPU(*d.GPU)
		case d.NIC != nil && allocate.Elsewhere(*d.NIC):
			if name := taken.NIC(*d.NIC); name != "" {
				return name
			}
			return "another network namespace"
		case d.NIC != nil:
			return taken.NIC(*d.NIC)
		case d.Driver == resourceslice.GPUDriver:
			return taken.GPU(discover.GPU{UUID: d.UUID, PCIAddress: d.PCIAddress, Name: d.Name})
		}
		return taken.NIC(discover.NIC{Name: nicName(d), Interface: d.Interface, PCIAddress: d.PCIAddress})
	}
}

func nicName(d claim.Device) string {
	switch {
	case d.NIC != nil:
		return d.NIC.Name
	case d.Interface != "":
		return d.Interface
	}
	return d.Name
}

// allocation is what cdi-gen takes: as much of each device as tells it apart.
type allocation struct {
	GPUs []gpu `json:"gpus"`
	NICs []nic `json:"nics"`
}

type gpu struct {
	Name       string `json:"name,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	PCIAddress string `json:"pciAddress,omitempty"`
}

type nic struct {
	Name       string `json:"name"`
	PCIAddress string `json:"pciAddress,omitempty"`
}

func writeAllocation(w io.Writer, result *claim.Result) error {
	out := allocation{GPUs: []gpu{}, NICs: []nic{}}
	for _, r := range result.Requests {
		d := r.Device
		switch {
		case d.GPU != nil && d.GPU.MIG != nil: // its PCI address is its GPU's
			out.GPUs = append(out.GPUs, gpu{Name: d.GPU.Name, UUID: d.GPU.UUID})
		case d.GPU != nil:
			out.GPUs = append(out.GPUs, gpu{d.GPU.Name, d.GPU.UUID, d.GPU.PCIAddress})
		case d.Driver == resourceslice.GPUDriver:
			out.GPUs = append(out.GPUs, gpu{UUID: d.UUID, PCIAddress: d.PCIAddress})
		case d.Driver == resourceslice.NICDriver:
			out.NICs = append(out.NICs, nic{nicName(d), d.PCIAddress})
		default:
			return fmt.Errorf("claim %q: request %q: device %s is of driver %s, which cdi-gen does not know", r.Claim, r.Request, d.Name, d.Driver)
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

func writeTable(w io.Writer, result *claim.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join([]string{"CLAIM", "REQUEST", "DRIVER", "DEVICE", "PCI"}, "\t"))
	for _, r := range result.Requests {
		fmt.Fprintln(t, strings.Join([]string{r.Claim, r.Request, r.Device.Driver, r.Device.Name, r.Device.PCIAddress}, "\t"))
	}
	return t.Flush()
}
