package cdi

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// libraryDirs are where distributions and Kubernetes providers put the driver's
// libraries. 64-bit directories come first: Red Hat's /usr/lib is for 32 bits.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu",                // Debian, Ubuntu
	"/usr/lib/x86_64-linux-gnu/nvidia/current", // Debian
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu/nvidia/current",
	"/usr/lib64", // Red Hat, SUSE
	"/lib64",     // and a driver root that is the driver's own directory
	"/usr/lib",   // Arch
	"/lib",
	"/usr/local/nvidia/lib64",           // GKE, inside a pod
	"/home/kubernetes/bin/nvidia/lib64", // GKE, on the node
	"/run/opengl-driver/lib",            // NixOS
	"/usr/local/glibc/usr/lib",          // Talos
}

// libraryDirs32 are the same for 32-bit libraries.
var libraryDirs32 = []string{
	"/usr/lib/i386-linux-gnu",
	"/usr/lib/i386-linux-gnu/nvidia/current",
	"/usr/lib32",
	"/usr/lib",
	"/lib32",
	"/usr/local/nvidia/lib32",
	"/run/opengl-driver-32/lib",
}

// binaryDirs are the same for programs.
var binaryDirs = []string{
	"/usr/bin",
	"/bin",
	"/usr/local/nvidia/bin",
	"/home/kubernetes/bin/nvidia/bin",
	"/run/opengl-driver/bin",
	"/run/current-system/sw/bin",
}

// driverContainer is where the GPU operator's driver container has its root.
const driverContainer = "/run/nvidia/driver"

// containerLibraryDirs are where a library must be for the loaders of most
// images to find it without ld.so.cache and LD_LIBRARY_PATH: Red Hat's and
// SUSE's look in /usr/lib64, Debian's, Arch's and musl's in /usr/lib. Neither
// looks in the other's.
var containerLibraryDirs = []string{"/usr/lib64", "/usr/lib"}

// With 32-bit libraries, /usr/lib is theirs, for Debian's and for Red Hat's
// loaders; 64-bit ones go where Debian's looks first. Arch's and musl's 64-bit
// loaders do not find them then.
var (
	containerLibraryDirs64 = []string{"/usr/lib64", "/usr/lib/x86_64-linux-gnu"}
	containerLibraryDirs32 = []string{"/usr/lib", "/usr/lib32"}
)

// containerBinaryDir is in every image's PATH.
const containerBinaryDir = "/usr/bin"

// driver finds the files of the user-mode driver.
type driver struct {
	// root is the driver's root; prefix is where it is on the host.
	root    *discover.Root
	prefix  string
	version string
	// dirs and dirs32 are the library directories that exist, each once.
	dirs, dirs32 []string
	capabilities []Capability
	mounts       []*specs.Mount
}

// library is a file of the driver and the names by which programs load it.
type library struct {
	path  string
	names []string
}

// openDriver finds the driver's libraries below the driver root, or, where none
// is named and there are none, below a driver container's. The caller closes it.
func openDriver(root *discover.Root, version string, o Options) (*driver, error) {
	if version == "" {
		return nil, errors.New("the NVIDIA kernel driver's version is unknown (/proc/driver/nvidia/version): is the driver loaded?")
	}
	d := &driver{root: root, version: version, capabilities: o.Capabilities}
	if prefix := path.Clean("/" + o.DriverRoot); prefix != "/" {
		if err := d.enter(prefix); err != nil {
			return nil, fmt.Errorf("driver root: %w", err)
		}
	}
	if !d.findDirs() && d.prefix == "" && root.Exists(driverContainer) {
		inside := &driver{root: root, version: version, capabilities: o.Capabilities}
		if err := inside.enter(driverContainer); err == nil {
			if inside.findDirs() {
				return inside, nil
			}
			inside.close()
		}
	}
	return d, nil
}

// enter makes a directory the driver's root, so that a driver container's
// absolute links stay in it.
func (d *driver) enter(prefix string) error {
	resolved, err := d.root.Resolve(prefix)
	if err != nil {
		return err
	}
	below, err := discover.OpenRoot(filepath.Join(d.root.Dir(), resolved))
	if err != nil {
		return err
	}
	d.root, d.prefix = below, prefix
	return nil
}

func (d *driver) close() {
	if d.prefix != "" {
		d.root.Close()
	}
}

// findDirs sets the directories to look in: the known ones; and, if libcuda and
// NVML are in none of them, those of the loader's cache. It returns whether they
// have one of the two.
func (d *driver) findDirs() bool {
	d.dirs = d.existing(libraryDirs)
	if slices.Contains(d.capabilities, Compat32) {
		d.dirs32 = d.existing(libraryDirs32)
	}
	if d.hasDriver() {
		return true
	}
	data, err := d.root.ReadFile("/etc/ld.so.cache")
	if err != nil {
		return false
	}
	cache, err := parseLDCache(data)
	if err != nil {
		return false
	}
	for _, e := range cache.entries {
		if (e.name == "libcuda.so.1" || e.name == "libnvidia-ml.so.1") && e.is64() {
			d.dirs = append(d.dirs, d.existing([]string{path.Dir(e.path)})...)
			// The link may be somewhere else than what it leads to.
			if file, err := d.root.Resolve(e.path); err == nil {
				d.dirs = append(d.dirs, path.Dir(file))
			}
		}
	}
	return d.hasDriver()
}

func (d *driver) hasDriver() bool {
	return slices.ContainsFunc(d.dirs, func(dir string) bool {
		return d.root.Exists(path.Join(dir, "libcuda.so."+d.version)) || d.root.Exists(path.Join(dir, "libnvidia-ml.so."+d.version))
	})
}

// FindLibrary is the path, as this process sees it, of a driver's library such
// as "libnvidia-ml.so", of the kernel driver's version.
func FindLibrary(root *discover.Root, host *discover.Host, driverRoot, stem string) (string, error) {
	file, err := findLibrary(root, host, driverRoot, stem)
	return filepath.Join(root.Dir(), file), err
}

// findLibrary is the same below the root.
func findLibrary(root *discover.Root, host *discover.Host, driverRoot, stem string) (string, error) {
	d, err := openDriver(root, host.DriverVersion, Options{DriverRoot: driverRoot})
	if err != nil {
		return "", err
	}
	defer d.close()
	want := wanted{stem: stem}
	lib, err := d.find(want, d.dirs, elf.ELFCLASS64)
	if err != nil {
		return "", err
	}
	if lib == nil {
		return "", d.missing(want)
	}
	return d.prefix + lib.path, nil
}

// driverMounts are the driver's files for the capabilities.
func driverMounts(root *discover.Root, version string, o Options) ([]*specs.Mount, error) {
	d, err := openDriver(root, version, o)
	if err != nil {
		return nil, err
	}
	defer d.close()
	if err := d.addLibraries(); err != nil {
		return nil, err
	}
	for _, name := range collect(driverBinaries, d.capabilities) {
		if file := d.binary(name); file != "" {
			d.mount(file, path.Join(containerBinaryDir, name))
		}
	}
	d.addConfigs()
	d.addFirmware()
	slices.SortFunc(d.mounts, func(a, b *specs.Mount) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
	return d.mounts, nil
}

func (d *driver) mount(file, container string) {
	d.mounts = append(d.mounts, readOnly(d.prefix+file, container))
}

// addLibraries mounts each library under each of its names, where loaders look.
func (d *driver) addLibraries() error {
	dirs := containerLibraryDirs
	if slices.Contains(d.capabilities, Compat32) {
		dirs = containerLibraryDirs64
	}
	for _, want := range collect(driverLibraries, d.capabilities) {
		if slices.Contains(d.capabilities, Compat32) {
			lib, err := d.find(want, d.dirs32, elf.ELFCLASS32)
			if err != nil {
				return err
			}
			d.mountLibrary(lib, containerLibraryDirs32)
		}
		lib, err := d.find(want, d.dirs, elf.ELFCLASS64)
		if err != nil {
			return err
		}
		if lib == nil && want.necessary {
			return d.missing(want)
		}
		d.mountLibrary(lib, dirs)
		if lib != nil && want.stem == "libnvidia-allocator.so" && drawing(d.capabilities) {
			for _, dir := range gbmDirs {
				d.mount(lib.path, path.Join(dir, "nvidia-drm_gbm.so"))
			}
		}
	}
	if slices.Contains(d.capabilities, Display) {
		d.addXorg()
	}
	return nil
}

func (d *driver) mountLibrary(lib *library, dirs []string) {
	if lib == nil {
		return
	}
	for _, name := range lib.names {
		for _, dir := range dirs {
			d.mount(lib.path, path.Join(dir, name))
		}
	}
}

// existing are those of the directories that exist, without second names for
// the same one (/lib64 for /usr/lib64).
func (d *driver) existing(dirs []string) []string {
	var out []string
	for _, dir := range dirs {
		if resolved, err := d.root.Resolve(dir); err == nil && !slices.Contains(out, resolved) {
			out = append(out, resolved)
		}
	}
	return out
}

// find looks for a library of the kernel driver's version. A library that is
// not there is nil without an error. Names are asked for one by one, not read
// from the directory: that is quicker, however many files are in it.
func (d *driver) find(want wanted, dirs []string, class elf.Class) (*library, error) {
	base := want.fileName(d.version)
	for _, dir := range dirs {
		for _, sub := range []string{"", "vdpau"} {
			if sub != "" && want.stem != "libvdpau_nvidia.so" {
				continue
			}
			file, err := d.root.Resolve(path.Join(dir, sub, base))
			if err != nil {
				continue
			}
			names, err := d.names(path.Join(dir, sub), base, file, want, class)
			if errors.Is(err, errOtherABI) || errors.Is(err, discover.ErrNotRegular) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if want.alias != "" && class == elf.ELFCLASS64 {
				names = append(names, want.alias)
			}
			return &library{path: file, names: names}, nil
		}
	}
	return nil, nil
}

var errOtherABI = errors.New("a library of another word size")

// names are those by which a library is loaded: the file's own, and its SONAME.
// That is in the file; for what is no ELF file (a host tree's libraries are
// lines of text) it is the link beside it that leads to it.
func (d *driver) names(dir, base, file string, want wanted, class elf.Class) ([]string, error) {
	f, err := d.root.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names := []string{base}
	if real := path.Base(file); real != base && want.mayBeCalled(real) {
		names = append(names, real) // libnvidia-egl-gbm.so.1 is libnvidia-egl-gbm.so.1.1.2
	}
	lib, err := readObject(f)
	switch {
	case errors.Is(err, errNoELF):
		return append(names, d.linkTo(dir, base, file, want)...), nil
	case err != nil:
		return nil, fmt.Errorf("%s: cannot read its SONAME: %w", path.Join("/", d.prefix, file), err)
	case lib.class != class:
		return nil, errOtherABI
	}
	// A file that calls itself libc.so.6 must not replace the container's.
	if !slices.Contains(names, lib.soname) && want.mayBeCalled(lib.soname) {
		names = append(names, lib.soname)
	}
	return names, nil
}

// linkTo is the name in a directory, with a number of one digit, that leads to a
// library.
func (d *driver) linkTo(dir, base, file string, want wanted) []string {
	if !strings.HasSuffix(want.stem, ".so") {
		return nil
	}
	for digit := range 10 {
		name := want.stem + "." + strconv.Itoa(digit)
		if target, err := d.root.Resolve(path.Join(dir, name)); err == nil && target == file && name != base {
			return []string{name}
		}
	}
	return nil
}

// missing says why a necessary library was not found: there is none, or one of
// another version than the kernel driver's, which the driver would refuse
// ("Driver/library version mismatch").
func (d *driver) missing(want wanted) error {
	for _, dir := range d.dirs {
		if _, err := d.root.Resolve(path.Join(dir, want.fileName(d.version))); err == nil {
			return fmt.Errorf("%s is no 64-bit library", path.Join("/", d.prefix, dir, want.fileName(d.version)))
		}
	}
	for _, dir := range d.dirs {
		for _, link := range []string{want.stem + ".1", want.stem} {
			file, err := d.root.Resolve(path.Join(dir, link))
			version, ok := strings.CutPrefix(path.Base(file), want.stem+".")
			if err == nil && ok && strings.Contains(version, ".") {
				return fmt.Errorf("the NVIDIA kernel driver is version %s but the library %s is version %s: "+
					"install libraries of the running driver, or reload the driver (reboot)",
					d.version, path.Join("/", d.prefix, file), version)
			}
		}
	}
	return fmt.Errorf("%s is missing: looked in %s, and what %s names; if the driver is elsewhere, say where (driver root)",
		want.fileName(d.version), strings.Join(d.prefixed(), ", "), path.Join("/", d.prefix, "etc/ld.so.cache"))
}

func (d *driver) prefixed() []string {
	out := []string{}
	for _, dir := range libraryDirs {
		out = append(out, path.Join("/", d.prefix, dir))
	}
	return out
}

// binary is a program of the driver, or empty. Also a driver root's own bin
// directory is looked into ("/home/kubernetes/bin/nvidia").
func (d *driver) binary(name string) string {
	for _, dir := range binaryDirs {
		file, err := d.root.Resolve(path.Join(dir, name))
		if err != nil {
			continue
		}
		if info, err := d.root.Stat(file); err == nil && info.Mode().IsRegular() && executable(info) && !d.isScript(file) {
			return file
		}
	}
	return ""
}

// isScript: a wrapper in /usr/bin for a driver elsewhere names paths that the
// container has not (seen on an H200 machine with the driver in /usr/local/nvidia).
func (d *driver) isScript(file string) bool {
	f, err := d.root.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	start := make([]byte, 2)
	_, err = io.ReadFull(f, start)
	return err == nil && string(start) == "#!"
}

func executable(info fs.FileInfo) bool { return info.Mode()&0o111 != 0 }
