package main

import (
	"path/filepath"
	"strings"
	"testing"

	"podrail/internal/golden"

	reference "tags.cncf.io/container-device-interface/pkg/cdi"
)

// specCases are the specs that a person has read: testdata/specs/NAME.*.
var specCases = []struct {
	name, host string
	args       []string
	// devices of "all".
	gpus, nics []string
}{
	{"a4-whole", "a4-highgpu-8g", []string{"--all"}, strings.Split("01234567", ""), strings.Split("01234567", "")},
	{"a4-2+2", "a4-highgpu-8g", []string{"--gpus", "0,1", "--nics", "gpu0rdma0,gpu1rdma0"}, []string{"0", "1"}, []string{"0", "1"}},
	{"a4-4+4-lower", "a4-highgpu-8g", []string{"--gpus", "0,1,2,3", "--nics", "gpu0rdma0,gpu1rdma0,gpu2rdma0,gpu3rdma0"}, strings.Split("0123", ""), strings.Split("0123", "")},
	{"a4-4+4-upper", "a4-highgpu-8g", []string{"--gpus", "7,6,5,4", "--nics", "mlx5_7,0000:cd:00.0,gpu5rdma0,mlx5_4"}, strings.Split("4567", ""), strings.Split("4567", "")},
	{"a4-1", "a4-highgpu-8g", []string{"--gpus", "GPU-5f1a0c2e-93d4-6b17-e8a5-21c07d94b6f3"}, []string{"2"}, nil},
	{"a4-named", "a4-highgpu-8g", []string{"--gpus", "3", "--nics", "gpu3rdma0", "--name", "pod-7", "--mad"}, []string{"3"}, []string{"3"}},
	{"h200-x2", "h200-x2", []string{"--all"}, []string{"0", "1"}, nil},
	{"a100-mig", "a100-mig", []string{"--all"}, []string{"0", "-caps/nvidia-cap12", "-caps/nvidia-cap13", "-caps/nvidia-cap21", "-caps/nvidia-cap22", "1"}, nil},
	{"a100-mig-one", "a100-mig", []string{"--gpus", "0:1,1", "--ldcache"}, []string{"0", "-caps/nvidia-cap21", "-caps/nvidia-cap22", "1"}, nil},
	{"a100-all-capabilities", "a100-mig", []string{"--gpus", "1", "--capabilities", "all,gdrcopy,imex,nvswitch,persistenced"}, []string{"1"}, nil},
	{"wsl", "wsl", []string{"--gpus", "all", "--nics", "none"}, nil, nil},
	{"infiniband-4vf", "infiniband-4vf", []string{"--all"}, nil, strings.Split("01234", "")},
}

// TestSpecs compares the specs of host trees with files, and has the reference
// library read what was written.
func TestSpecs(t *testing.T) {
	t.Parallel()
	for _, c := range specCases {
		for _, format := range []string{"yaml", "json"} {
			t.Run(c.name+"."+format, func(t *testing.T) {
				t.Parallel()
				args := append([]string{"generate", "--root", filepath.Join(hosts, c.host), "--hook-path", "/usr/bin/netdev-hook", "--format", format}, c.args...)
				shown := cdiGen("", append(args, "--output", "-")...)
				if shown.status != 0 {
					t.Fatal(shown.stderr)
				}
				golden.Check(t, filepath.Join("testdata/specs", c.name+"."+format), []byte(shown.stdout))

				dir := filepath.Join(t.TempDir(), "cdi")
				written := cdiGen("", append(args, "--output", dir)...)
				if written.status != 0 {
					t.Fatal(written.stderr)
				}
				checkStrict(t, dir, written.stdout)
				checkAll(t, dir, "nvidia.com/gpu", "/dev/nvidia", c.gpus)
				checkAll(t, dir, "dra.net/nic", "/dev/infiniband/uverbs", c.nics)
			})
		}
	}
}

// checkStrict has the reference library load each file, and compares the devices
// that it then knows with those that cdi-gen said it wrote.
func checkStrict(t *testing.T, dir, stdout string) {
	t.Helper()
	var devices []string
	for _, line := range strings.Split(strings.TrimSpace(stdout), "\n") {
		if !strings.HasPrefix(line, "/") {
			devices = append(devices, line)
			continue
		}
		spec, err := reference.ReadSpec(line, 0)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if spec.Version > "0.5.0" {
			t.Errorf("%s: cdiVersion %s: Podman 4.3 reads 0.5.0 at most", line, spec.Version)
		}
	}
	cache, err := reference.NewCache(reference.WithSpecDirs(dir), reference.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		t.Errorf("the reference library finds %v", errs)
	}
	for _, d := range devices {
		if cache.GetDevice(d) == nil {
			t.Errorf("the reference library does not know %s", d)
		}
	}
	if known := cache.ListDevices(); len(known) != len(devices) {
		t.Errorf("the reference library knows %d devices, %d were printed", len(known), len(devices))
	}
}

// checkAll compares the nodes of a kind's "all" with the numbers expected.
func checkAll(t *testing.T, dir, kind, prefix string, numbers []string) {
	t.Helper()
	cache, err := reference.NewCache(reference.WithSpecDirs(dir), reference.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range cache.ListDevices() {
		if !strings.HasPrefix(name, kind+"=") || !strings.HasSuffix(name, "all") {
			continue
		}
		for _, n := range cache.GetDevice(name).ContainerEdits.DeviceNodes {
			if number, ok := strings.CutPrefix(n.Path, prefix); ok {
				got = append(got, number)
			}
			if n.Type == "" || n.FileMode == nil || n.Permissions == "" {
				t.Errorf("%s: %s has no type, fileMode or permissions", name, n.Path)
			}
		}
	}
	if strings.Join(got, " ") != strings.Join(numbers, " ") {
		t.Errorf("%s=all has %s%v, expected %v", kind, prefix, got, numbers)
	}
}
