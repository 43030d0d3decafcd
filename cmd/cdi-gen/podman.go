package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"podrail/internal/allocate"
	"podrail/internal/hookapi"
	"podrail/pkg/cdi"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

func podmanFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "podman-conf", Usage: "also write a containers.conf to `FILE` that gives every container these devices (CONTAINERS_CONF_OVERRIDE, or a drop-in)"},
		&cli.StringFlag{Name: "podman-version", Usage: "write it for this `VERSION` of Podman", DefaultText: "the podman in PATH"},
		&cli.StringFlag{Name: "wrapper", Usage: "also write a program podman to `DIR`, for a Podman without CDI: it adds these devices to run and create"},
	}
}

func wantsPodman(c *cli.Context) bool { return c.IsSet("podman-conf") || c.IsSet("wrapper") }

// checkPodman refuses flags that have no effect or no place to go.
func checkPodman(c *cli.Context) error {
	for _, name := range []string{"podman-conf", "podman-version", "wrapper"} {
		if c.IsSet(name) && c.String(name) == "" {
			return usagef("--%s is empty", name)
		}
	}
	if wantsPodman(c) && c.String("output") == "-" {
		return usagef("--podman-conf and --wrapper say where the specs are: --output must be a directory")
	}
	if c.IsSet("podman-version") {
		if _, err := cdi.ParsePodmanVersion(c.String("podman-version")); err != nil {
			return usagef("--%w", err)
		}
	}
	return nil
}

// writePodman writes what makes Podman give the specs' devices to every container.
func (p *program) writePodman(c *cli.Context, built *cdi.Built, answer allocate.Answer, out output) error {
	if !wantsPodman(c) {
		return nil
	}
	podman := cdi.Podman{Name: c.String("name"), Dir: out.dir()}
	memlock := p.podmanMemlock(c, answer.Devices.NICs)
	if file := c.String("podman-conf"); file != "" {
		var err error
		if podman.Version, err = podmanVersion(c); err != nil {
			return err
		}
		podman.Ulimits = ulimits(memlock, podman.Version.Appends())
		data, err := podman.Conf(built.Specs)
		if err == nil {
			err = p.putFiles(filepath.Dir(file), []cdi.File{{Path: file, Data: data}})
		}
		if err != nil {
			return fmt.Errorf("--podman-conf %s: %w", file, err)
		}
	}
	if dir := c.String("wrapper"); dir != "" {
		podman.Ulimits = ulimits(memlock, false)
		data, err := podman.Wrapper(built.Specs)
		if err == nil {
			err = p.putFiles(dir, []cdi.File{{Path: filepath.Join(dir, "podman"), Data: data, Program: true}})
		}
		if err != nil {
			return fmt.Errorf("--wrapper %s: %w", dir, err)
		}
	}
	return nil
}

// podmanVersion is the one asked for, or that of the podman in PATH.
func podmanVersion(c *cli.Context) (cdi.PodmanVersion, error) {
	if c.IsSet("podman-version") {
		return cdi.ParsePodmanVersion(c.String("podman-version"))
	}
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(c.Context, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "podman", "--version").Output()
	if err != nil {
		return cdi.PodmanVersion{}, fmt.Errorf("podman --version: %w: --podman-version VERSION says which Podman it is for", err)
	}
	return cdi.ParsePodmanVersion(string(out))
}

// littleMemlock is what registering buffers for RDMA soon exceeds.
const littleMemlock = 1 << 30

// ulimits are the limits that Podman is told: that on locked memory alone where
// others stay as they are. Where they do not, Podman before 4.8 would raise the
// numbers of files and processes beyond what this container may set, and fail.
func ulimits(memlock string, others bool) []string {
	if memlock == "" {
		return nil
	}
	out := []string{"memlock=" + memlock + ":" + memlock}
	if others {
		return out
	}
	for _, l := range []struct {
		name     string
		resource int
	}{{"nofile", unix.RLIMIT_NOFILE}, {"nproc", unix.RLIMIT_NPROC}} {
		var limit unix.Rlimit
		if unix.Getrlimit(l.resource, &limit) == nil {
			text, _ := clampLimit("", limit.Max)
			out = append(out, l.name+"="+text+":"+text)
		}
	}
	return out
}

// podmanMemlock is the limit on locked memory for containers with RDMA devices:
// what --memlock says, else as much as there is, and never more than this
// container has. More would fail every start without root.
func (p *program) podmanMemlock(c *cli.Context, nics []discover.NIC) string {
	if !slices.ContainsFunc(nics, func(n discover.NIC) bool { return len(n.RDMA) > 0 }) {
		return ""
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		p.log.Warn("the limit on locked memory is not known", "error", err)
		return ""
	}
	text, most := clampLimit(c.String("memlock"), limit.Max)
	if most != unix.RLIM_INFINITY && most < littleMemlock {
		p.log.Warn("RDMA needs more locked memory than containers may have here",
			"bytes", most, "limit", "this container's, which is containerd's LimitMEMLOCK (systemctl edit containerd), or the pod's")
	}
	return text
}

// clampLimit is a limit for Podman, as text and as a number.
func clampLimit(asked string, hard uint64) (string, uint64) {
	most := hard
	if asked != "" && asked != "unlimited" {
		if size, err := hookapi.ParseMemlock(asked); err == nil {
			most = min(size, hard)
		}
	}
	if most == unix.RLIM_INFINITY {
		return "-1", most
	}
	return strconv.FormatUint(most, 10), most
}
