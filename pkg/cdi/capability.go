package cdi

import (
	"fmt"
	"slices"
	"strings"
)

// Capability is a part of the NVIDIA driver, as NVIDIA_DRIVER_CAPABILITIES
// names it, or something beside the driver that a container may ask for.
type Capability string

// NVIDIA's own: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit.
const (
	// Compute is CUDA and OpenCL.
	Compute Capability = "compute"
	// Utility is nvidia-smi and NVML.
	Utility Capability = "utility"
	// Video is encoding and decoding.
	Video Capability = "video"
	// Graphics is OpenGL, EGL and Vulkan; Display is the same with X11.
	Graphics Capability = "graphics"
	Display  Capability = "display"
	// NGX is deep learning for graphics (DLSS).
	NGX Capability = "ngx"
	// Compat32 adds the 32-bit libraries of the other capabilities.
	Compat32 Capability = "compat32"
)

// Beside the driver. A container gets them when they are asked for, and, inside
// a pod, when the pod was given them.
const (
	GDRCopy       Capability = "gdrcopy"
	GDS           Capability = "gds"
	IMEX          Capability = "imex"
	NVSwitch      Capability = "nvswitch"
	Persistenced  Capability = "persistenced"
	FabricManager Capability = "fabricmanager"
	MPS           Capability = "mps"
)

// DefaultCapabilities are what a container gets unless it asks otherwise; the
// NVIDIA toolkit's default is Utility alone, its images' both.
var DefaultCapabilities = []Capability{Compute, Utility}

var (
	driverCapabilities = []Capability{Compute, Utility, Video, Graphics, Display, NGX, Compat32}
	extraCapabilities  = []Capability{GDRCopy, GDS, IMEX, NVSwitch, Persistenced, FabricManager, MPS}
)

// wanted is a library that a capability needs.
type wanted struct {
	// stem is its name without version: "libcuda.so". With one, such as
	// "libfoo.so.4", it has a version of its own, and that is a link or the file.
	stem string
	// necessary libraries must be there: no driver lacks them.
	necessary bool
	// alias is one more name that programs load it by, and no SONAME.
	alias string
}

func optional(stems ...string) []wanted {
	var out []wanted
	for _, s := range stems {
		out = append(out, wanted{stem: s})
	}
	return out
}

// driverLibraries are libnvidia-container's lists (src/nvc_info.c), and what
// drivers have added since then.
var driverLibraries = map[Capability][]wanted{
	Compute: append([]wanted{
		// Many programs open libcuda.so, though that is for compilers.
		{stem: "libcuda.so", necessary: true, alias: "libcuda.so"},
	}, optional(
		"libcudadebugger.so", "libnvidia-allocator.so", "libnvidia-compiler.so", "libnvidia-fatbinaryloader.so",
		"libnvidia-gpucomp.so", "libnvidia-nvvm.so", "libnvidia-nvvm70.so.4", "libnvidia-opencl.so",
		"libnvidia-pkcs11-openssl3.so", "libnvidia-pkcs11.so", "libnvidia-ptxjitcompiler.so", "libnvidia-tileiras.so")...),
	Utility: append([]wanted{{stem: "libnvidia-ml.so", necessary: true}},
		optional("libnvidia-cfg.so", "libnvidia-nscq.so", "libnvidia-sandboxutils.so")...),
	Video: append(optional("libnvcuvid.so", "libnvidia-encode.so", "libvdpau_nvidia.so"),
		wanted{stem: "libnvidia-opticalflow.so", alias: "libnvidia-opticalflow.so"}),
	Graphics: graphicsLibraries,
	Display:  graphicsLibraries,
	NGX:      optional("libnvidia-ngx.so"),
	Compat32: nil, // see library32
}

var graphicsLibraries = append(optional(
	"libEGL_nvidia.so", "libGLESv1_CM_nvidia.so", "libGLESv2_nvidia.so",
	"libnvidia-allocator.so", "libnvidia-api.so.1", "libnvidia-cbl.so", "libnvidia-eglcore.so", "libnvidia-egl-gbm.so.1",
	"libnvidia-egl-wayland.so.1", "libnvidia-egl-wayland2.so.1", "libnvidia-egl-xcb.so.1", "libnvidia-egl-xlib.so.1",
	"libnvidia-fbc.so", "libnvidia-glcore.so", "libnvidia-glsi.so", "libnvidia-glvkspirv.so", "libnvidia-gpucomp.so",
	"libnvidia-ifr.so", "libnvidia-present.so", "libnvidia-rtcore.so", "libnvidia-tls.so", "libnvidia-vksc-core.so",
	"libnvidia-vulkan-producer.so", "libnvidia-wayland-client.so", "libnvoptix.so"),
	wanted{stem: "libGLX_nvidia.so", alias: "libGLX_indirect.so.0"})

// driverBinaries are the programs of each capability. nvidia-modprobe is not for
// containers: it loads kernel modules.
var driverBinaries = map[Capability][]string{
	Compute: {"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"},
	Utility: {"nvidia-debugdump", "nvidia-imex", "nvidia-imex-ctl", "nvidia-persistenced", "nvidia-smi"},
	Display: {"nvidia-xconfig"},
}

// driverConfigs are files below /etc or a "share" directory by which loaders of
// several vendors' drivers find NVIDIA's.
var driverConfigs = map[Capability][]string{
	Compute:  {"OpenCL/vendors/nvidia.icd"},
	Graphics: graphicsConfigs,
	Display:  append([]string{"X11/xorg.conf.d/10-nvidia.conf", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"}, graphicsConfigs...),
}

var graphicsConfigs = []string{
	"egl/egl_external_platform.d/09_nvidia_wayland2.json",
	"egl/egl_external_platform.d/10_nvidia_wayland.json",
	"egl/egl_external_platform.d/15_nvidia_gbm.json",
	"egl/egl_external_platform.d/20_nvidia_xcb.json",
	"egl/egl_external_platform.d/20_nvidia_xlib.json",
	"glvnd/egl_vendor.d/10_nvidia.json",
	"nvidia/nvoptix.bin",
	"vulkan/icd.d/nvidia_icd.aarch64.json",
	"vulkan/icd.d/nvidia_icd.json",
	"vulkan/icd.d/nvidia_icd.x86_64.json",
	"vulkan/implicit_layer.d/nvidia_layers.json",
}

// ParseCapabilities reads a list such as "compute,utility"; "all" is all of
// NVIDIA's.
func ParseCapabilities(list string) ([]Capability, error) {
	var out []Capability
	add := func(more ...Capability) {
		for _, c := range more {
			if !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	for _, word := range strings.Split(list, ",") {
		c := Capability(word)
		switch {
		case word == "all":
			add(driverCapabilities...)
		case slices.Contains(driverCapabilities, c), slices.Contains(extraCapabilities, c):
			add(c)
		default:
			return nil, fmt.Errorf("unknown capability %q: known are %s, all (of these), and %s",
				word, words(driverCapabilities), words(extraCapabilities))
		}
	}
	return out, nil
}

// CapabilitiesFromEnv reads the value of NVIDIA_DRIVER_CAPABILITIES, which an
// image or a pod may have set for programs that know more or less words.
func CapabilitiesFromEnv(value string) (known []Capability, unknown []string) {
	for _, word := range strings.Split(value, ",") {
		word = strings.TrimSpace(word)
		more, err := ParseCapabilities(word)
		if err != nil && word != "" {
			unknown = append(unknown, word)
		}
		for _, c := range more {
			if !slices.Contains(known, c) {
				known = append(known, c)
			}
		}
	}
	if len(known) == 0 {
		known = slices.Clone(DefaultCapabilities)
	}
	return known, unknown
}

func words(list []Capability) string {
	var out []string
	for _, c := range list {
		out = append(out, string(c))
	}
	return strings.Join(out, ", ")
}

// collect is what a table has for the capabilities, each once.
func collect[T comparable](table map[Capability][]T, capabilities []Capability) []T {
	var out []T
	for _, c := range capabilities {
		for _, item := range table[c] {
			if !slices.Contains(out, item) {
				out = append(out, item)
			}
		}
	}
	return out
}

// drawing says whether the capabilities need a GPU's nodes for graphics.
func drawing(capabilities []Capability) bool {
	return slices.Contains(capabilities, Graphics) || slices.Contains(capabilities, Display) || slices.Contains(capabilities, Video)
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
