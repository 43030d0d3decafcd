package cdi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Mount is a file or directory of the host that a container gets.
type Mount struct {
	Host, Container string
	// Options are mount options; empty means read-only.
	Options []string
}

// mountOptions are those that ParseMount takes. runc and crun know more, but
// those change what other mounts see (shared), or are not for a bind mount.
var mountOptions = []string{"ro", "rw", "exec", "noexec", "suid", "nosuid", "dev", "nodev",
	"bind", "rbind", "private", "rprivate", "slave", "rslave"}

// ParseMount reads HOST:CONTAINER[:OPTS], as podman's --volume takes it.
func ParseMount(s string) (Mount, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return Mount{}, fmt.Errorf("mount %q: must be HOST:CONTAINER[:OPTS]", s)
	}
	m := Mount{Host: parts[0], Container: parts[1]}
	for _, p := range parts[:2] {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return m, fmt.Errorf("mount %q: %q is not an absolute path without '..' and double or final slashes", s, p)
		}
	}
	if m.Container == "/" {
		return m, fmt.Errorf("mount %q: a container's whole root cannot be replaced", s)
	}
	if len(parts) == 3 {
		m.Options = strings.Split(parts[2], ",")
	}
	for _, option := range m.Options {
		if !slices.Contains(mountOptions, option) {
			return m, fmt.Errorf("mount %q: unknown option %q; known are %s", s, option, strings.Join(mountOptions, ", "))
		}
	}
	return m, nil
}

// readOnly mounts a file so that it can be neither written nor used to gain
// privileges. Options are the NVIDIA toolkit's.
func readOnly(host, container string) *specs.Mount {
	return &specs.Mount{
		HostPath:      host,
		ContainerPath: container,
		Options:       []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
	}
}

// extraMounts are mounts that the user asked for; each must exist.
func extraMounts(root *discover.Root, list []Mount) ([]*specs.Mount, error) {
	var out []*specs.Mount
	for _, m := range list {
		if !root.Exists(m.Host) {
			return nil, fmt.Errorf("mount %s:%s: %s does not exist", m.Host, m.Container, m.Host)
		}
		mount := readOnly(m.Host, m.Container)
		for _, option := range m.Options {
			mount.Options = setOption(mount.Options, option)
		}
		out = append(out, mount)
	}
	return out, nil
}

// setOption adds an option in the place of the one that says the opposite.
func setOption(options []string, option string) []string {
	opposites := [][]string{{"ro", "rw"}, {"suid", "nosuid"}, {"dev", "nodev"}, {"exec", "noexec"},
		{"bind", "rbind"}, {"private", "rprivate", "slave", "rslave"}}
	for _, group := range opposites {
		if !slices.Contains(group, option) {
			continue
		}
		for i, old := range options {
			if slices.Contains(group, old) {
				options[i] = option
				return options
			}
		}
	}
	return append(options, option)
}
