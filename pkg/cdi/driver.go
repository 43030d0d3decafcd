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
	"strings"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// libraryDirs are where distributions and Kubernetes providers put the driver's
// libraries. 64-bit directories come first: Red Hat's /usr/lib is for 32 bits.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/x86_64-linux-gnu/nvidia/current",
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu/nvidia/current",
	"/usr/lib64",
	"/lib64",
	"/usr/lib",
	"/lib",
	"/usr/local/nvidia/lib64",           // GKE, inside a pod
	"/home/kubernetes/bin/nvidia/lib64", // GKE, on the node
	"/run/opengl-driver/lib",            // NixOS
}

// binaryDirs are the same for programs.
var binaryDirs = []string{
	"/usr/bin",
	"/bin",
	"/usr/local/nvidia/bin",
	"/home/kubernetes/bin/nvidia/bin",
	"/run/current-system/sw/bin",
}

// containerLibraryDirs are where a library must be for the loaders of most
// images to find it without ld.so.cache and LD_LIBRARY_PATH: Red Hat's and
// SUSE's look in /usr/lib64, Debian's, Arch's and musl's in /usr/lib. Neither
// looks in the other's.
var containerLibraryDirs = []string{"/usr/lib64", "/usr/lib"}

// containerBinaryDir is in every image's PATH.
const containerBinaryDir = "/usr/bin"

// driver finds the files of the user-mode driver.
type driver struct {
	// root is the driver's root; prefix is where it is on the host.
	root    *discover.Root
	prefix  string
	version string
	// dirs are the library directories that exist, each once.
	dirs []string
}

// library is a file of the driver and the names by which programs load it.
type library struct {
	path  string
	names []string
}

// driverMounts are the driver's libraries and programs for the capabilities.
func driverMounts(root *discover.Root, version string, o Options) ([]*specs.Mount, error) {
	if version == "" {
		return nil, errors.New("the NVIDIA kernel driver's version is unknown (/proc/driver/nvidia/version): is the driver loaded?")
	}
	d := driver{root: root, version: version}
	if prefix := path.Clean("/" + o.DriverRoot); prefix != "/" {
		below, err := openBelow(root, prefix)
		if err != nil {
			return nil, fmt.Errorf("driver root: %w", err)
		}
		defer below.Close()
		d.root, d.prefix = below, prefix
	}
	d.dirs = d.existing(libraryDirs)

	var mounts []*specs.Mount
	for _, want := range librariesFor(o.Capabilities) {
		lib, err := d.find(want)
		switch {
		case err != nil:
			return nil, err
		case lib == nil && want.necessary:
			return nil, d.missing(want)
		case lib == nil:
			continue
		}
		for _, name := range lib.names {
			for _, dir := range containerLibraryDirs {
				mounts = append(mounts, readOnly(d.prefix+lib.path, path.Join(dir, name)))
			}
		}
	}
	for _, name := range binariesFor(o.Capabilities) {
		if file := d.binary(name); file != "" {
			mounts = append(mounts, readOnly(d.prefix+file, path.Join(containerBinaryDir, name)))
		}
	}
	slices.SortFunc(mounts, func(a, b *specs.Mount) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
	return mounts, nil
}

// openBelow opens a directory of a root as a root of its own, so that a driver
// container's absolute links stay in it.
func openBelow(root *discover.Root, name string) (*discover.Root, error) {
	resolved, err := root.Resolve(name)
	if err != nil {
		return nil, err
	}
	return discover.OpenRoot(filepath.Join(root.Dir(), resolved))
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
func (d *driver) find(want wanted) (*library, error) {
	base := want.fileName(d.version)
	for _, dir := range d.dirs {
		file, err := d.root.Resolve(path.Join(dir, base))
		if err != nil {
			continue
		}
		names, err := d.names(dir, base, file, want)
		if errors.Is(err, errOtherABI) || errors.Is(err, discover.ErrNotRegular) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &library{path: file, names: names}, nil
	}
	return nil, nil
}

var errOtherABI = errors.New("not a 64-bit library")

// names are those by which a library is loaded: the file's own, and its SONAME.
// That is in the file; for what is no ELF file (a host tree's libraries are
// empty) it is the links beside it that lead to it.
func (d *driver) names(dir, base, file string, want wanted) ([]string, error) {
	f, err := d.root.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	object, err := elf.NewFile(f)
	if err != nil {
		return d.linksTo(dir, base, file, want)
	}
	if object.Class != elf.ELFCLASS64 {
		return nil, errOtherABI
	}
	sonames, err := object.DynString(elf.DT_SONAME)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot read its SONAME: %w", file, err)
	}
	names := []string{base}
	for _, soname := range sonames {
		// A file that calls itself libc.so.6 must not replace the container's.
		if soname != base && want.mayBeCalled(soname) {
			names = append(names, soname)
		}
	}
	return names, nil
}

// linksTo are the names in a directory that lead to a library, and its own.
func (d *driver) linksTo(dir, base, file string, want wanted) ([]string, error) {
	entries, err := d.root.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := []string{base}
	for _, entry := range entries {
		if entry == base || entry == want.stem || !want.mayBeCalled(entry) {
			continue
		}
		if target, err := d.root.Resolve(path.Join(dir, entry)); err == nil && target == file {
			names = append(names, entry)
		}
	}
	return names, nil
}

// missing says why a necessary library was not found: there is none, or one of
// another version than the kernel driver's, which the driver would refuse
// ("Driver/library version mismatch").
func (d *driver) missing(want wanted) error {
	for _, dir := range d.dirs {
		entries, err := d.root.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if version, ok := strings.CutPrefix(entry, want.stem+"."); ok && strings.Contains(version, ".") {
				return fmt.Errorf("the NVIDIA kernel driver is version %s but the library %s is version %s: "+
					"install libraries of the running driver, or reload the driver (reboot)",
					d.version, path.Join(d.prefix, dir, entry), version)
			}
		}
	}
	return fmt.Errorf("%s is missing: looked in %s; if the driver is elsewhere, say where (driver root)",
		want.fileName(d.version), strings.Join(d.prefixed(), ", "))
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
