package cdi

import (
	"fmt"
	"path"
	"slices"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Linux on Windows has the driver's libraries in one directory, and what those
// load, by absolute paths, in another.
const (
	wslLibraries = "/usr/lib/wsl/lib"
	wslStore     = "/usr/lib/wsl/drivers"
)

// wslFiles are the files of each capability; those of graphics are Direct3D's.
var wslFiles = map[Capability][]string{
	Compute:  {"libcuda.so", "libcuda.so.1", "libcuda.so.1.1", "libcudadebugger.so.1", "libdxcore.so", "libnvdxgdmal.so.1"},
	Utility:  {"libdxcore.so", "libnvidia-ml.so.1"},
	Video:    {"libdxcore.so", "libnvcuvid.so", "libnvcuvid.so.1", "libnvidia-encode.so", "libnvidia-encode.so.1", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"},
	Graphics: {"libd3d12.so", "libd3d12core.so", "libdxcore.so", "libnvdxdlkernels.so", "libnvoptix.so.1", "libnvwgf2umx.so"},
}

func onWSL(gpus []discover.GPU) bool {
	return slices.ContainsFunc(gpus, func(g discover.GPU) bool {
		return slices.ContainsFunc(g.Nodes, func(n discover.DeviceNode) bool { return n.Path == discover.WSLNode })
	})
}

func wslMounts(root *discover.Root, o Options) ([]*specs.Mount, error) {
	d := &driver{root: root}
	for _, dir := range []string{wslLibraries, wslStore} {
		if !root.Exists(dir) {
			return nil, fmt.Errorf("%s is missing: Windows puts the driver's files there; update Windows' driver and restart WSL", dir)
		}
	}
	d.mounts = append(d.mounts, readOnly(wslStore, wslStore))
	for _, name := range collect(wslFiles, o.Capabilities) {
		if file := d.first([]string{wslLibraries}, name); file != "" {
			for _, dir := range containerLibraryDirs {
				d.mount(file, path.Join(dir, name))
			}
		}
	}
	if slices.Contains(o.Capabilities, Utility) {
		if file := d.first([]string{wslLibraries}, "nvidia-smi"); file != "" {
			d.mount(file, path.Join(containerBinaryDir, "nvidia-smi"))
		}
	}
	return d.mounts, nil
}
