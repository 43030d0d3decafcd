package cdi

import (
	"fmt"
	"slices"
	"strings"
)

// Capability is a part of the NVIDIA driver, as NVIDIA_DRIVER_CAPABILITIES
// names it.
type Capability string

// The capabilities that are known here.
const (
	// Compute is CUDA and OpenCL.
	Compute Capability = "compute"
	// Utility is nvidia-smi and NVML.
	Utility Capability = "utility"
)

// DefaultCapabilities are what a container gets unless it asks otherwise; the
// NVIDIA toolkit's default is Utility alone, its images' both.
var DefaultCapabilities = []Capability{Compute, Utility}

// wanted is a library that a capability needs.
type wanted struct {
	// stem is its name without version: "libcuda.so"; with one ("libfoo.so.4")
	// the file is called that, whatever the driver's version.
	stem string
	// necessary libraries must be there: no driver lacks them.
	necessary bool
}

// driverLibraries are libnvidia-container's lists (src/nvc_info.c), and what
// drivers have added since then.
var driverLibraries = map[Capability][]wanted{
	Compute: {
		{"libcuda.so", true},
		{"libcudadebugger.so", false},
		{"libnvidia-allocator.so", false},
		{"libnvidia-compiler.so", false},
		{"libnvidia-fatbinaryloader.so", false},
		{"libnvidia-gpucomp.so", false},
		{"libnvidia-nvvm.so", false},
		{"libnvidia-nvvm70.so.4", false},
		{"libnvidia-opencl.so", false},
		{"libnvidia-pkcs11-openssl3.so", false},
		{"libnvidia-pkcs11.so", false},
		{"libnvidia-ptxjitcompiler.so", false},
		{"libnvidia-tileiras.so", false},
	},
	Utility: {
		{"libnvidia-cfg.so", false},
		{"libnvidia-ml.so", true},
		{"libnvidia-nscq.so", false},
		{"libnvidia-sandboxutils.so", false},
	},
}

// driverBinaries are the programs of each capability.
var driverBinaries = map[Capability][]string{
	Utility: {"nvidia-smi"},
}

// ParseCapabilities reads a list such as "compute,utility".
func ParseCapabilities(list string) ([]Capability, error) {
	var out []Capability
	for _, word := range strings.Split(list, ",") {
		c := Capability(word)
		if _, known := driverLibraries[c]; !known {
			return nil, fmt.Errorf("unknown capability %q: known are %s and %s", word, Compute, Utility)
		}
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out, nil
}

func librariesFor(capabilities []Capability) []wanted {
	var out []wanted
	for _, c := range capabilities {
		out = append(out, driverLibraries[c]...)
	}
	return out
}

func binariesFor(capabilities []Capability) []string {
	var out []string
	for _, c := range capabilities {
		out = append(out, driverBinaries[c]...)
	}
	return out
}

// fileName is the library's file for a driver of the given version.
func (w wanted) fileName(version string) string {
	if strings.HasSuffix(w.stem, ".so") {
		return w.stem + "." + version
	}
	return w.stem
}

// mayBeCalled says whether a name belongs to the library: its stem, or that and
// a version.
func (w wanted) mayBeCalled(name string) bool {
	rest, ok := strings.CutPrefix(name, w.stem)
	return ok && (rest == "" || strings.Trim(rest, ".0123456789") == "" && rest[0] == '.')
}
