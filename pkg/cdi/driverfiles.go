package cdi

import (
	"path"
	"strings"
)

// gbmDirs are where Red Hat's, Debian's and Arch's Mesa look for a driver's part
// of GBM, which is libnvidia-allocator under another name.
var gbmDirs = []string{"/usr/lib64/gbm", "/usr/lib/x86_64-linux-gnu/gbm", "/usr/lib/gbm"}

// xorgDirs are where X servers have their modules; containerXorgDirs where those
// of Debian and of Red Hat look.
var (
	xorgDirs = []string{"/usr/lib/xorg/modules", "/usr/lib64/xorg/modules", "/usr/lib/x86_64-linux-gnu/nvidia/xorg",
		"/usr/lib/nvidia/xorg", "/usr/lib64/nvidia/xorg", "/usr/local/nvidia/lib64/xorg/modules"}
	containerXorgDirs = []string{"/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"}
)

// addXorg adds the X server's driver, and its GLX module under both its names.
func (d *driver) addXorg() {
	glx := "libglxserver_nvidia.so"
	for _, module := range []struct {
		file  string
		names []string
	}{
		{"drivers/nvidia_drv.so", []string{"drivers/nvidia_drv.so"}},
		{"extensions/" + glx + "." + d.version, []string{"extensions/" + glx + "." + d.version, "extensions/" + glx}},
	} {
		file := d.first(xorgDirs, module.file)
		if file == "" { // some packages have no such directories
			file = d.first(xorgDirs, path.Base(module.file))
		}
		for _, dir := range containerXorgDirs {
			for _, name := range module.names {
				if file != "" {
					d.mount(file, path.Join(dir, name))
				}
			}
		}
	}
}

// configDirs have what loaders of several vendors' drivers read. In a container
// it goes to where it is on the host, if that is one of the first three, which
// every loader reads; else below /usr/share.
var configDirs = []string{
	"/etc",
	"/usr/share",
	"/usr/local/share",
	"/usr/local/nvidia/share",           // GKE, inside a pod
	"/home/kubernetes/bin/nvidia/share", // GKE, on the node
	"/run/opengl-driver/share",          // NixOS
	"/share",                            // a driver root that is the driver's own directory
	"/",                                 // GKE: nvidia/vulkan
}

func (d *driver) addConfigs() {
	for _, name := range collect(driverConfigs, d.capabilities) {
		for i, dir := range configDirs {
			file := d.first([]string{dir}, name)
			if file == "" {
				continue
			}
			target := dir
			if i > 2 {
				target = "/usr/share"
				if strings.HasPrefix(name, "OpenCL/") { // looked for in /etc alone
					target = "/etc"
				}
			}
			d.mount(file, path.Join(target, name))
			break
		}
	}
}

// addFirmware adds the GPUs' system processor's firmware. The kernel loads it
// from the mount namespace of whoever opens a GPU first.
func (d *driver) addFirmware() {
	const below = "/lib/firmware"
	release := ""
	if data, err := d.root.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		release = strings.TrimSpace(string(data))
	}
	dirs := []string{below + "/updates", below, "/usr/lib/firmware", "/usr/local/nvidia/firmware",
		"/home/kubernetes/bin/nvidia/firmware", "/firmware", "/run/current-system/firmware"}
	if release != "" && !strings.Contains(release, "/") {
		dirs = append([]string{path.Join(below, "updates", release), path.Join(below, release)}, dirs...)
	}
	if data, err := d.root.ReadFile("/sys/module/firmware_class/parameters/path"); err == nil {
		if custom := strings.TrimSpace(string(data)); path.IsAbs(custom) {
			dirs = append([]string{custom}, dirs...)
		}
	}
	for _, dir := range dirs {
		found := false
		// Turing's and GA100's; all later ones'; with confidential computing.
		for _, name := range []string{"gsp.bin", "gsp_ga10x.bin", "gsp_tu10x.bin", "ucodes_gsp_ga10x.bin", "ucodes_gsp_tu10x.bin"} {
			if file := d.first([]string{path.Join(dir, "nvidia", d.version)}, name); file != "" {
				d.mount(file, path.Join(below, "nvidia", d.version, name))
				found = true
			}
		}
		if found {
			return
		}
	}
}

// first is the regular file of that name in the first directory that has one.
func (d *driver) first(dirs []string, name string) string {
	for _, dir := range dirs {
		file, err := d.root.Resolve(path.Join(dir, name))
		if err != nil {
			continue
		}
		if info, err := d.root.Stat(file); err == nil && info.Mode().IsRegular() {
			return file
		}
	}
	return ""
}
