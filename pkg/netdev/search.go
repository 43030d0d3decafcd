package netdev

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"podrail/internal/hookapi"
)

// errNamespaceGone: nothing that can be seen from here holds the namespace.
var errNamespaceGone = errors.New("is gone")

// namespace opens a network namespace that the journal names. It stays open, for
// other NICs of the same call, until the session ends.
func (s *session) namespace(want hookapi.Namespace, pin *hookapi.Pin, containers []hookapi.Container) (*namespace, error) {
	if s.own.id.Same(want) {
		return s.own, nil
	}
	for _, n := range s.others {
		if n.id.Same(want) {
			return n, nil
		}
	}
	n, err := findNamespace(want, pin, containers)
	if err == nil {
		s.others = append(s.others, n)
	}
	return n, err
}

// findNamespace looks wherever something could hold a namespace: a pin, a
// container's process, a mount (podman and CNI keep theirs below /run/netns), any
// other process.
func findNamespace(want hookapi.Namespace, pin *hookapi.Pin, containers []hookapi.Container) (*namespace, error) {
	if pin != nil {
		if n, err := openPin(pin); err == nil {
			if n.id.Same(want) {
				return n, nil
			}
			n.close()
		}
	}
	for _, c := range containers {
		if n := openIf("/proc/"+strconv.Itoa(c.PID)+"/ns/net", want); n != nil {
			return n, nil
		}
	}
	for _, path := range append(namespaceMounts("/proc/thread-self", ""), namespaceMounts("/proc/1", "/proc/1/root")...) {
		if n := openIf(path, want); n != nil {
			return n, nil
		}
	}
	for _, path := range processNamespaces() {
		if inode, err := inodeOf(path); err != nil || inode != want.Inode {
			continue
		}
		if n := openIf(path, want); n != nil {
			return n, nil
		}
	}
	return nil, fmt.Errorf("network namespace %s %w", want, errNamespaceGone)
}

func openIf(path string, want hookapi.Namespace) *namespace {
	n, err := openNamespace(path)
	if err != nil {
		return nil
	}
	if !n.id.Same(want) {
		n.close()
		return nil
	}
	return n
}

// namespaceMounts are the paths of the nsfs mounts in a process's mount
// namespace, as they can be opened from here (proc_pid_mountinfo(5)).
func namespaceMounts(proc, root string) []string {
	f, err := os.Open(proc + "/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	return parseMounts(f, root)
}

// maxMountLine bounds a line of mountinfo: an overlay lists all its layers.
const maxMountLine = 4 << 20

func parseMounts(mountinfo io.Reader, root string) []string {
	var paths []string
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, maxMountLine)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		// ... root mountpoint options - nsfs nsfs rw; the root is "net:[4026532288]".
		if len(fields) > 4 && strings.HasPrefix(fields[3], "net:[") {
			paths = append(paths, root+unescape(fields[4]))
		}
	}
	return paths
}

// unescape undoes mountinfo's octal escapes ("\040" is a space).
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func processNamespaces() []string {
	paths, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	return paths
}
