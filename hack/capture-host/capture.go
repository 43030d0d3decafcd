package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"podrail/internal/link"
	"podrail/pkg/cdi"
	"podrail/pkg/discover"
)

// capture copies the host below a directory ("/") to another, which is new or
// empty, and reads it back. The notes say what is not as on the host.
func capture(from, dir string) (*discover.Host, []string, error) {
	if err := makeEmpty(dir); err != nil {
		return nil, nil, err
	}
	root, err := discover.OpenRoot(from)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	asked := map[string]bool{}
	root.OnRead(func(name string) { asked[name] = true })
	host, err := discover.Read(root)
	if err != nil {
		return nil, nil, err
	}
	notes := findDriver(root, host)
	root.OnRead(nil)

	t := tree{root: root, dir: dir, nodes: map[string]discover.DeviceNode{}, links: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if err := t.add(name); err != nil {
			return nil, notes, err
		}
	}
	if err := t.addLibraries(host.DriverVersion); err != nil {
		return nil, notes, err
	}
	if err := errors.Join(t.writeNodes(), t.writeNetwork()); err != nil {
		return nil, notes, err
	}
	notes = append(notes, t.notes...)
	differences, err := compare(dir, host)
	return host, append(notes, differences...), err
}

func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty", dir)
	}
	return err
}

// findDriver has the driver's files searched for.
func findDriver(root *discover.Root, host *discover.Host) (notes []string) {
	if len(host.GPUs) == 0 {
		return nil
	}
	all, err := cdi.ParseCapabilities("all")
	if err == nil {
		_, err = cdi.Build(root, host, discover.Devices{GPUs: host.GPUs}, cdi.Options{NICMode: cdi.NICHook, Capabilities: all})
	}
	if err != nil {
		notes = append(notes, fmt.Sprintf("files of the driver may be missing from the copy: %v", err))
	}
	return notes
}

// tree is the copy.
type tree struct {
	root  *discover.Root
	dir   string
	nodes map[string]discover.DeviceNode
	// links are those below /dev.
	links map[string]string
	notes []string
}

// maxLinks is how many links the kernel follows in one name.
const maxLinks = 40

// add copies what a name leads to, and each directory and link on the way.
// What is not there is not copied.
func (t *tree) add(name string) error {
	links := 0
	done, rest := "/", strings.Split(name, "/")
	for len(rest) > 0 {
		next := path.Join(done, rest[0])
		rest = rest[1:]
		if inside(next, "/dev") {
			t.addNode(path.Join(next, path.Join(rest...)))
			return nil
		}
		info, err := t.root.Lstat(next)
		if err != nil {
			return nil
		}
		switch info.Mode().Type() {
		case fs.ModeDir:
			if err := os.MkdirAll(t.outside(next), 0o755); err != nil {
				return err
			}
			done = next
		case fs.ModeSymlink:
			text, err := t.root.Readlink(next)
			if links++; err != nil || links > maxLinks {
				return nil
			}
			if err := os.Symlink(text, t.outside(next)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if path.IsAbs(text) {
				done = "/"
			}
			rest = append(strings.Split(text, "/"), rest...)
		default:
			return t.addFile(next, info)
		}
	}
	return nil
}

// addFile copies a file of procfs or sysfs; any other is replaced by a line.
func (t *tree) addFile(name string, info fs.FileInfo) error {
	data := []byte("stands for " + path.Base(name) + "\n")
	if inside(name, "/proc") || inside(name, "/sys") {
		var err error
		if data, err = t.root.ReadFile(name); err != nil {
			t.notes = append(t.notes, fmt.Sprintf("not copied: %v", err))
			return nil
		}
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	return os.WriteFile(t.outside(name), data, mode)
}

func (t *tree) addNode(name string) {
	if node, err := t.root.DeviceNode(name); err == nil {
		t.nodes[name] = node
	} else if text, err := t.root.Readlink(name); err == nil {
		t.links[name] = text
	}
}

// addLibraries adds all files of the driver's version from the directories
// where it has some, and the links to them: what a capability needs that
// nobody asked for today.
func (t *tree) addLibraries(version string) error {
	if version == "" {
		return nil
	}
	found, err := t.libraryDirs(".so." + version)
	if err != nil {
		return err
	}
	for _, dir := range found {
		names, err := t.root.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			file, err := t.root.Resolve(path.Join(dir, name))
			if err != nil || !strings.HasSuffix(file, ".so."+version) {
				continue
			}
			if err := t.add(path.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// libraryDirs are the directories of the copy with files of that ending.
func (t *tree) libraryDirs(ending string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(t.dir, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && strings.HasSuffix(name, ending) {
			below, err := filepath.Rel(t.dir, filepath.Dir(name))
			dirs = append(dirs, path.Join("/", below))
			return err
		}
		return err
	})
	slices.Sort(dirs)
	return slices.Compact(dirs), err
}

// writeNodes writes the list of device nodes: those asked for, and all in the
// directories that are the devices' own.
func (t *tree) writeNodes() error {
	for _, dir := range []string{"/dev/infiniband", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"} {
		nodes, _ := t.root.DeviceNodes(dir + "/*")
		for _, node := range nodes {
			t.nodes[node.Path] = node
		}
	}
	var list strings.Builder
	list.WriteString("# device nodes: mode, uid, gid, major, minor, path\n")
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		list.WriteString(t.nodes[name].String() + "\n")
	}
	for _, name := range slices.Sorted(maps.Keys(t.links)) {
		list.WriteString(name + " -> " + t.links[name] + "\n")
	}
	return os.WriteFile(t.outside("/dev"), []byte(list.String()), 0o644)
}

// writeNetwork writes what the kernel says of links, addresses and routes, or
// what the tree that is copied says of them.
func (t *tree) writeNetwork() error {
	data, err := t.readNetwork()
	if err != nil {
		return err
	}
	return os.WriteFile(t.outside("/net.json"), data, 0o644)
}

func (t *tree) readNetwork() ([]byte, error) {
	if !t.root.Live() {
		return t.root.ReadFile("/net.json")
	}
	c, err := link.Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	state, err := c.State()
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(state, "", "  ")
	return append(data, '\n'), err
}

// outside is where a name is in the copy. Its parent was made as a directory
// without links, so nothing is written elsewhere.
func (t *tree) outside(name string) string { return filepath.Join(t.dir, name) }

func inside(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// compare says what the copy's inventory has not got as the host's.
func compare(dir string, want *discover.Host) ([]string, error) {
	root, err := discover.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	got, err := discover.Read(root)
	if err != nil {
		return nil, fmt.Errorf("reading the copy: %w", err)
	}
	var differences []string
	for _, part := range []struct {
		name      string
		got, want any
	}{
		{"GPUs", got.GPUs, want.GPUs},
		{"NICs", got.NICs, want.NICs},
		{"PCI functions", got.PCI, want.PCI},
		{"NUMA nodes", got.NUMANodes, want.NUMANodes},
		{"driver version", got.DriverVersion, want.DriverVersion},
		{"control nodes", got.ControlNodes, want.ControlNodes},
		{"rdma_cm", got.RDMACM, want.RDMACM},
	} {
		if !reflect.DeepEqual(part.got, part.want) {
			differences = append(differences, fmt.Sprintf("%s read from the copy differ from the host's", part.name))
		}
	}
	return differences, nil
}
