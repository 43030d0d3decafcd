package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"podrail/internal/hookapi"
	"podrail/pkg/netdev"
)

func reconcile(hook netdev.Hook) *cli.Command {
	return &cli.Command{
		Name:  "reconcile",
		Usage: "bring home the NICs of dead containers, and repair those the kernel returned",
		UsageText: `netdev-hook reconcile [--ifindex N]

  netdev-hook reconcile`,
		Flags: []cli.Flag{&cli.IntFlag{Name: "ifindex", Usage: "look at the interface with index `N` alone, as the udev rule asks"}},
		Action: func(c *cli.Context) error {
			if c.Args().Present() || c.IsSet("ifindex") && c.Int("ifindex") <= 0 {
				return usageError{errors.New("usage: netdev-hook reconcile [--ifindex N], N from 1")}
			}
			reports, err := hook.Reconcile(c.Int("ifindex"))
			for _, r := range reports {
				fmt.Fprintln(c.App.ErrWriter, "netdev-hook: "+r)
			}
			return err
		},
	}
}

func giveBack(hook netdev.Hook) *cli.Command {
	return &cli.Command{
		Name:  "return",
		Usage: "bring a NIC home by hand",
		UsageText: `netdev-hook return NAME [--force]

NAME is the NIC's name on the host, or its identity as status prints it.
  netdev-hook return gpu0rdma0 --force`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "take it from containers that still run"}},
		Action: func(c *cli.Context) error {
			name, force := c.Args().First(), c.Bool("force")
			for _, rest := range c.Args().Tail() { // the flag package stops at the first argument
				if rest != "--force" && rest != "-force" {
					return usageError{fmt.Errorf("unexpected argument %q", rest)}
				}
				force = true
			}
			if name == "" {
				return usageError{errors.New("usage: netdev-hook return NAME [--force]")}
			}
			return hook.Return(name, force)
		},
	}
}

// report is the output of `status -o json`.
type report struct {
	NICs     []hookapi.Entry   `json:"nics"`
	Problems []string          `json:"problems"`
	Failures []hookapi.Failure `json:"failures"`
}

func status(hook netdev.Hook) *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show which NICs are away from home, and who holds them",
		UsageText: `netdev-hook status [-o table|json]

  netdev-hook status -o json`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: table or json"}},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageError{fmt.Errorf("unexpected argument %q", c.Args().First())}
			}
			entries, problems, err := hook.Status()
			if err != nil {
				return err
			}
			// Lists without elements are [] in JSON, not null.
			r := report{append([]hookapi.Entry{}, entries...), append([]string{}, problems...), append([]hookapi.Failure{}, hook.Failures()...)}
			switch format := c.String("output"); format {
			case "table":
				return printStatus(c.App.Writer, r)
			case "json":
				enc := json.NewEncoder(c.App.Writer)
				enc.SetIndent("", "  ")
				return enc.Encode(r)
			default:
				return usageError{fmt.Errorf("-o %q: expected table or json", format)}
			}
		},
	}
}

func printStatus(w io.Writer, r report) error {
	if len(r.NICs) == 0 {
		fmt.Fprintln(w, "No NIC is away from home.")
	} else {
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t, "NIC\tIDENTITY\tPHASE\tSINCE\tNAMESPACE\tPINNED\tHELD BY")
		for _, e := range r.NICs {
			pin := "-"
			if e.Pin != nil {
				pin = e.Pin.Path
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", quoted(e.Netdev.Name), quoted(e.Identity), e.Phase, e.Since.Format("2006-01-02T15:04:05Z"), e.Owner, quoted(pin), heldBy(e))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, e := range r.NICs {
		if e.LastError != "" {
			fmt.Fprintf(w, "problem: %s: %s\n", quoted(e.Netdev.Name), e.LastError)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "problem: %s\n", p)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(w, "failure: %s container %q: %s\n", f.Time.Format("2006-01-02T15:04:05Z"), f.Container, f.Message)
	}
	return nil
}

func heldBy(e hookapi.Entry) string {
	var all []string
	for _, c := range e.Containers {
		all = append(all, fmt.Sprintf("%q (process %d)", short(c.ID), c.PID))
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, ", ")
}

// short is an id as engines print it.
func short(id string) string {
	if len(id) == 64 {
		return id[:12]
	}
	return id
}

// quoted keeps what a workload or a file named from doing tricks with a terminal.
func quoted(s string) string {
	if q := fmt.Sprintf("%q", s); q != `"`+s+`"` {
		return q
	}
	return s
}
