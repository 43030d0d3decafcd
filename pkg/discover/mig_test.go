package discover_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"podrail/pkg/discover"
)

func gpuNames(h *discover.Host) string {
	var out []string
	for _, g := range h.GPUs {
		out = append(out, g.Name)
	}
	return strings.Join(out, " ")
}

// TestMIG takes away what makes a MIG device usable.
func TestMIG(t *testing.T) {
	t.Parallel()
	const gi1 = "proc/driver/nvidia/capabilities/gpu0/mig/gi1"
	cases := []struct {
		name  string
		spoil func(t *testing.T, dir string)
		// gpus are the names; nodes how many the first has; problem is part of a text.
		gpus    string
		nodes   int
		problem string
	}{
		{"as it is", func(*testing.T, string) {}, "0:0 0:1 1", 3, ""},
		{"a pod without the instance", func(t *testing.T, dir string) {
			replace(t, dir, "dev", "cr--r--r-- 0 0 234 13 /dev/nvidia-caps/nvidia-cap13\n", "")
		}, "0:0 0:1 1", 0, ""},
		{"node of another number", func(t *testing.T, dir string) {
			replace(t, dir, "dev", "234 13 /dev", "234 22 /dev")
		}, "0:0 0:1 1", 0, "nvidia-cap13 is device 234:22, want minor 13"},
		{"no compute instance", func(t *testing.T, dir string) {
			remove(t, dir, gi1+"/ci0")
			remove(t, dir, "proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0")
		}, "1", 1, "GPU is in MIG mode and has no MIG device"},
		{"garbage for a minor", func(t *testing.T, dir string) {
			write(t, dir, gi1+"/access", "DeviceFileMinor: x")
		}, "0:0 0:1 1", 0, "has no DeviceFileMinor"},
		{"a FIFO for a file", func(t *testing.T, dir string) {
			remove(t, dir, gi1+"/access")
			fifo(t, dir, gi1+"/access")
		}, "0:0 0:1 1", 0, "not a regular file"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := copyTree(t, "a100-mig")
			c.spoil(t, dir)
			host := read(t, dir)
			if got := gpuNames(host); got != c.gpus {
				t.Errorf("GPUs are %s, expected %s", got, c.gpus)
			}
			if got := len(host.GPUs[0].Nodes); got != c.nodes {
				t.Errorf("the first has %d nodes, expected %d", got, c.nodes)
			}
			found := slices.ContainsFunc(host.Problems, func(p discover.Problem) bool { return strings.Contains(p.Text, c.problem) })
			if c.problem == "" && len(host.Problems) > 0 || c.problem != "" && !found {
				t.Errorf("problems are %v, expected %q", host.Problems, c.problem)
			}
		})
	}
}

// TestMaskedProc finds GPUs where the driver's procfs is not to be seen.
func TestMaskedProc(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "a100-mig")
	remove(t, dir, "proc/driver")
	write(t, dir, "sys/module/nvidia/version", "570.133.20\n")
	host := read(t, dir)
	if got := gpuNames(host); got != "0 1" || host.DriverVersion != "570.133.20" {
		t.Errorf("GPUs are %s, driver %s", got, host.DriverVersion)
	}
	for _, g := range host.GPUs {
		if g.UUID != "" || g.PCIAddress != "" || len(g.Nodes) != 1 {
			t.Errorf("GPU %+v: nothing says which it is", g)
		}
	}
	remove(t, dir, filepath.Join("sys/bus/pci/devices/0000:0f:00.0"))
	replace(t, dir, "dev", "crw-rw-rw- 0 0 195 1 /dev/nvidia1\n", "")
	if g := read(t, dir).GPUs[0]; g.PCIAddress != "0000:07:00.0" {
		t.Errorf("the only GPU is at %q", g.PCIAddress)
	}
}

// TestDRM leaves out a node that is another device's by now, and a link to it.
func TestDRM(t *testing.T) {
	t.Parallel()
	dir := copyTree(t, "a100-mig")
	drm := func() string {
		var out []string
		for _, g := range read(t, dir).GPUs {
			for _, n := range g.DRM {
				out = append(out, n.Path+" "+n.ByPath)
			}
		}
		return strings.Join(out, "\n")
	}
	const card, render = "/dev/dri/card2 /dev/dri/by-path/pci-0000:0f:00.0-card", "/dev/dri/renderD129 /dev/dri/by-path/pci-0000:0f:00.0-render"
	if got := drm(); got != card+"\n"+render {
		t.Errorf("got\n%s", got)
	}
	replace(t, dir, "dev", "226 2 /dev/dri/card2", "226 9 /dev/dri/card2")
	replace(t, dir, "dev", "-render -> ../renderD129", "-render -> ../renderD128")
	if got := drm(); got != "/dev/dri/renderD129 " {
		t.Errorf("got\n%s", got)
	}
}
