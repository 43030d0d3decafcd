package cdi

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// PodmanVersion is a release of Podman.
type PodmanVersion struct{ Major, Minor int }

// ParsePodmanVersion reads "4.9.3", or what `podman --version` prints.
func ParsePodmanVersion(s string) (v PodmanVersion, err error) {
	number := strings.TrimPrefix(strings.TrimSpace(s), "podman version ")
	parts := strings.SplitN(number, ".", 3)
	if len(parts) >= 2 {
		major, errMajor := strconv.ParseUint(parts[0], 10, 16)
		minor, errMinor := strconv.ParseUint(parts[1], 10, 16)
		if errMajor == nil && errMinor == nil {
			return PodmanVersion{int(major), int(minor)}, nil
		}
	}
	return v, fmt.Errorf("podman-version %q: must be a version such as 4.9.3", s)
}

// Appends says whether a list in a configuration file can add to those of files
// read before (4.8). In older versions it takes their place.
func (v PodmanVersion) Appends() bool { return v.atLeast(4, 8) }

// atLeast compares versions.
func (v PodmanVersion) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Podman says how a Podman is told to give devices to every container.
type Podman struct {
	Version PodmanVersion
	// Name is that of the specs' devices, Dir where the specs are.
	Name, Dir string
	// Ulimits are limits of each container, NAME=SOFT:HARD; none leave them to Podman.
	Ulimits []string
}

// Conf is a containers.conf that gives every container all devices of the specs.
// From 4.4 on Podman finds CDI devices there by name; to older ones such a name is
// an error in every command, so that they are told the same edits one by one.
func (p Podman) Conf(built []*Spec) ([]byte, error) {
	var b strings.Builder
	b.WriteString("# Written by cdi-gen generate --podman-conf, for Podman " + fmt.Sprintf("%d.%d", p.Version.Major, p.Version.Minor) + ".\n[containers]\n")
	// Without it a list takes the place of the one in files that were read before.
	more := ""
	if p.Version.Appends() {
		more = ", {append=true}"
	}
	list := func(key string, values []string, more string) {
		if len(values) == 0 {
			return
		}
		quoted := make([]string, len(values))
		for i, v := range values {
			quoted[i] = tomlString(v)
		}
		fmt.Fprintf(&b, "%s = [\n  %s%s\n]\n", key, strings.Join(quoted, ",\n  "), more)
	}
	if p.Version.atLeast(4, 4) {
		if err := p.readsDir(); err != nil {
			return nil, err
		}
		var names []string
		for _, spec := range built {
			names = append(names, spec.Kind+"="+DeviceName(p.Name, allDevices))
		}
		list("devices", names, more)
	} else {
		e, err := optionsOf(built, p.Name)
		if err != nil {
			return nil, fmt.Errorf("Podman %d.%d has no CDI in containers.conf, which came with 4.4: %w", p.Version.Major, p.Version.Minor, err)
		}
		list("devices", e.devices, "")
		list("volumes", e.volumes, "")
		if len(e.env) > 0 { // the list takes the place of these defaults
			e.env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"}, e.env...)
		}
		list("env", e.env, "")
	}
	list("default_ulimits", p.Ulimits, more)
	if p.Version.atLeast(5, 5) { // 5.5.0 and 5.5.1 know /etc/cdi alone by themselves
		b.WriteString("[engine]\n")
		list("cdi_spec_dirs", p.dirs(), "")
	}
	return []byte(b.String()), nil
}

// dirs are where Podman shall look for specs.
func (p Podman) dirs() []string {
	dirs := []string{"/etc/cdi", "/var/run/cdi"}
	if !slices.Contains(dirs, filepath.Clean(p.Dir)) {
		dirs = append(dirs, filepath.Clean(p.Dir))
	}
	return dirs
}

// readsDir refuses a directory that this Podman cannot be told of.
func (p Podman) readsDir() error {
	if p.Version.atLeast(5, 5) || len(p.dirs()) == 2 {
		return nil
	}
	return fmt.Errorf("Podman %d.%d looks for CDI specs in /etc/cdi and /var/run/cdi alone, not in %s: --output /var/run/cdi, or Podman 5.5",
		p.Version.Major, p.Version.Minor, p.Dir)
}

// runOptions are a spec's edits as Podman's --device, --volume and --env take them.
type runOptions struct{ devices, volumes, env []string }

// optionsOf are the edits of all devices of the specs, each once.
func optionsOf(built []*Spec, name string) (e runOptions, err error) {
	add := func(list *[]string, value string) {
		if !slices.Contains(*list, value) {
			*list = append(*list, value)
		}
	}
	for _, spec := range built {
		i := slices.IndexFunc(spec.Devices, func(d specs.Device) bool { return d.Name == DeviceName(name, allDevices) })
		if i < 0 {
			return e, fmt.Errorf("spec of %s has no device %q", spec.Kind, DeviceName(name, allDevices))
		}
		for _, edits := range []specs.ContainerEdits{spec.ContainerEdits, spec.Devices[i].ContainerEdits} {
			for _, d := range edits.DeviceNodes {
				host := d.HostPath
				if host == "" {
					host = d.Path
				}
				if strings.Contains(host+d.Path, ":") {
					continue // /dev/dri/by-path, a second name of another node
				}
				add(&e.devices, host+":"+d.Path+":"+d.Permissions)
			}
			for _, m := range edits.Mounts {
				add(&e.volumes, m.HostPath+":"+m.ContainerPath+":"+strings.Join(m.Options, ","))
			}
			for _, variable := range edits.Env {
				add(&e.env, variable)
			}
			if len(edits.NetDevices) > 0 || slices.ContainsFunc(edits.Hooks, func(h *specs.Hook) bool { return h.HookName != "poststop" }) {
				return e, errNoHooks
			}
		}
	}
	return e, nil
}

var errNoHooks = errors.New("hooks can be told by CDI alone: --nic-mode devices, and no --ldcache")

// tomlString quotes a string for TOML.
func tomlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
