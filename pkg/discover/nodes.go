package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotDevice is wrapped by errors about something that is no character device
// where one is needed.
var ErrNotDevice = errors.New("not a character device")

// DeviceNode describes a character device below the root.
//
// In a tree whose "dev" is a regular file, that file lists the nodes, one a line:
// mode as ls prints it, user id, group id, major, minor, path. Empty lines and
// those that begin with # are left out.
//
//	crw-rw-rw- 0 0 195 255 /dev/nvidiactl
//
// A line of a link and its text, with an arrow between, is a symbolic link:
//
//	/dev/dri/by-path/pci-0000:07:00.0-render -> ../renderD128
func (r *Root) DeviceNode(name string) (DeviceNode, error) {
	if r.listed != nil {
		if r.seen != nil {
			r.seen(name)
		}
		node, ok := r.listed[path.Clean(name)]
		if !ok {
			return DeviceNode{}, r.fail("stat", name, fs.ErrNotExist)
		}
		return node, nil
	}
	info, err := r.Lstat(name)
	if err != nil {
		return DeviceNode{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return DeviceNode{}, r.fail("stat", name, ErrNotDevice)
	}
	return DeviceNode{
		Path:  path.Clean(name),
		Major: unix.Major(uint64(st.Rdev)),
		Minor: unix.Minor(uint64(st.Rdev)),
		Mode:  st.Mode & 0o7777,
		UID:   st.Uid,
		GID:   st.Gid,
	}, nil
}

// DeviceNodes describes the character devices whose paths match a pattern of
// path.Match, with wildcards in the last element alone ("/dev/nvidia*"), by name.
// Those that go away meanwhile are left out, and so is everything else.
func (r *Root) DeviceNodes(pattern string) ([]DeviceNode, error) {
	names, err := r.nodeNames(path.Dir(pattern))
	if err != nil {
		return nil, err
	}
	var nodes []DeviceNode
	for _, name := range names {
		// A look at each of the terminals in /dev would take longer than all the rest.
		if match, err := path.Match(pattern, name); err != nil || !match {
			continue
		}
		if node, err := r.DeviceNode(name); err == nil {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

func (r *Root) nodeNames(dir string) ([]string, error) {
	var names []string
	if r.listed != nil {
		for name := range maps.Keys(r.listed) {
			if path.Dir(name) == dir {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names, nil
	}
	names, err := r.ReadDir(dir)
	for i := range names {
		names[i] = path.Join(dir, names[i])
	}
	return names, err
}

// readDevList reads a tree's list of device nodes; nil when it has none.
func (r *Root) readDevList() (map[string]DeviceNode, error) {
	if info, err := r.Stat("/dev"); err != nil || !info.Mode().IsRegular() {
		return nil, nil
	}
	data, err := r.ReadFile("/dev")
	if err != nil {
		return nil, err
	}
	nodes := map[string]DeviceNode{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if link, target, ok := strings.Cut(line, " -> "); ok {
			if r.links == nil {
				r.links = map[string]string{}
			}
			r.links[path.Clean(link)] = target
			continue
		}
		node, err := parseNode(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", r.outside("/dev"), number, err)
		}
		nodes[node.Path] = node
	}
	return nodes, nil
}

func parseNode(line string) (DeviceNode, error) {
	fields := strings.Fields(line)
	if len(fields) != 6 {
		return DeviceNode{}, fmt.Errorf("%q is not mode, uid, gid, major, minor and path", line)
	}
	mode, err := parseMode(fields[0])
	if err != nil {
		return DeviceNode{}, err
	}
	var numbers [4]uint32
	for i := range numbers {
		n, err := strconv.ParseUint(fields[1+i], 10, 32)
		if err != nil {
			return DeviceNode{}, err
		}
		numbers[i] = uint32(n)
	}
	name := fields[5]
	if !strings.HasPrefix(name, "/dev/") || path.Clean(name) != name {
		return DeviceNode{}, fmt.Errorf("%q is no path below /dev", name)
	}
	return DeviceNode{
		Path: name, Mode: mode,
		UID: numbers[0], GID: numbers[1], Major: numbers[2], Minor: numbers[3],
	}, nil
}

// parseMode parses "crw-rw----".
func parseMode(s string) (uint32, error) {
	const full = "crwxrwxrwx"
	if len(s) != len(full) || s[0] != 'c' {
		return 0, fmt.Errorf("%q is no character device's mode", s)
	}
	mode := uint32(0)
	for i := 1; i < len(full); i++ {
		mode <<= 1
		switch s[i] {
		case full[i]:
			mode |= 1
		case '-':
		default:
			return 0, fmt.Errorf("%q is no character device's mode", s)
		}
	}
	return mode, nil
}

// String is the node's line in a tree's list.
func (n DeviceNode) String() string {
	return fmt.Sprintf("c%s %d %d %d %d %s", fs.FileMode(n.Mode & 0o777).String()[1:], n.UID, n.GID, n.Major, n.Minor, n.Path)
}

// optional is a node that need not be there: a container often has not got it.
func (r *Root) optional(name string) *DeviceNode {
	node, err := r.DeviceNode(name)
	if err != nil {
		return nil
	}
	return &node
}
