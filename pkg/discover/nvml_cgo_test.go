//go:build cgo

package discover

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// part is a MIG device as NVML shows it.
func part(uuid string, gi, ci int) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return gi, nvml.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvml.Return) { return ci, nvml.SUCCESS },
	}
}

// inMIGMode has a GPU of a mock server be the tree's, with these MIG devices.
func inMIGMode(device nvml.Device, uuid string, parts ...*mock.Device) {
	d := device.(*server.Device)
	d.UUID, d.MigMode = uuid, 1
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i >= len(parts) || parts[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return parts[i], nvml.SUCCESS
	}
}

func readTree(t *testing.T, name string) *Host {
	t.Helper()
	root, err := OpenRoot("../../testdata/hosts/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	host, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	return host
}

const (
	migParent = "GPU-8d6e3d1c-52bd-0a44-8a5f-3f1c2b7e9d10"
	wholeGPU  = "GPU-b2f0c6a7-1e4d-97c3-6f58-a4d1e07b3c29"
)

func TestNVML(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*server.Server{"dgxa100": dgxa100.New(), "dgxh200": dgxh200.New(), "dgxb200": dgxb200.New()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inits, shutdowns int
			s.InitFunc = func() nvml.Return { inits++; return nvml.SUCCESS }
			s.ShutdownFunc = func() nvml.Return { shutdowns++; return nvml.SUCCESS }
			// NVML counts them the other way round, and has a hole.
			inMIGMode(s.Devices[3], migParent, part("MIG-2222", 2, 0), nil, part("MIG-1111", 1, 0))
			s.Devices[4].(*server.Device).UUID = wholeGPU
			host := readTree(t, "a100-mig")
			if err := host.ask(s); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, g := range host.GPUs {
				got = append(got, g.Name+"="+g.UUID)
			}
			if got, want := strings.Join(got, " "), "0:0=MIG-2222 0:2=MIG-1111 1="+wholeGPU; got != want {
				t.Errorf("got %s, expected %s", got, want)
			}
			if n := host.GPUs[0].Nodes[1].Path; n != "/dev/nvidia-caps/nvidia-cap21" {
				t.Errorf("MIG device 0:0 has %s: another's node", n)
			}
			if inits != 1 || shutdowns != 1 {
				t.Errorf("%d times initialised, %d shut down; expected once each", inits, shutdowns)
			}
		})
	}
}

// TestNVMLEmptyMIG leaves a GPU out that nothing can use, and no other.
func TestNVMLEmptyMIG(t *testing.T) {
	t.Parallel()
	s := dgxa100.New()
	inMIGMode(s.Devices[0], wholeGPU)
	s.Devices[1].(*server.Device).UUID = migParent
	host := readTree(t, "a100-mig")
	if err := host.ask(s); err != nil {
		t.Fatal(err)
	}
	if len(host.GPUs) != 2 || host.GPUs[0].Name != "0:0" || host.GPUs[1].Name != "0:1" {
		t.Errorf("GPUs are %+v", host.GPUs)
	}
	if len(host.Problems) != 1 || host.Problems[0].Device != "0000:0f:00.0" || !strings.Contains(host.Problems[0].Text, "has no MIG device") {
		t.Errorf("problems are %v", host.Problems)
	}
}

// TestNVMLFails leaves the inventory as it is.
func TestNVMLFails(t *testing.T) {
	t.Parallel()
	broken := map[string]func(*server.Server){
		"version is not the kernel driver's": func(s *server.Server) {
			s.InitFunc = func() nvml.Return { return nvml.ERROR_LIB_RM_VERSION_MISMATCH }
		},
		"cannot be loaded": func(s *server.Server) { s.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND } },
		"no such symbol":   func(s *server.Server) { s.InitFunc = func() nvml.Return { panic("no such symbol") } },
		"finding it":       func(s *server.Server) {},
		"MIG device 0: NVML error 999": func(s *server.Server) {
			p := part("MIG-1", 1, 0)
			p.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }
			inMIGMode(s.Devices[0], migParent, p)
		},
	}
	for text, spoil := range broken {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			s := dgxa100.New()
			spoil(s)
			host := readTree(t, "a100-mig")
			if err := host.ask(s); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("error %v, expected %q", err, text)
			}
			if len(host.GPUs) != 3 || host.GPUs[0].UUID != "MIG-"+migParent+"/1/0" {
				t.Errorf("GPUs are %+v", host.GPUs)
			}
		})
	}
}

func TestNVMLNotThere(t *testing.T) {
	t.Parallel()
	host := readTree(t, "a100-mig")
	if err := host.AskNVML("/does/not/exist/libnvidia-ml.so.1"); err == nil || !strings.Contains(err.Error(), "cannot be loaded") {
		t.Errorf("error %v", err)
	}
}
