package cdi

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"podrail/pkg/discover"

	reference "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Finding is something wrong with a spec file.
type Finding struct {
	Path string
	Text string
}

func (f Finding) String() string { return f.Path + ": " + f.Text }

// Validate checks spec files, and those in directories: that each is a valid
// spec; that no two of one directory define the same device; that what they
// name is there below root; and that ours are what would be made now: driver
// updates, GPUs that went and nodes with new numbers are found so. It returns the files that it read and what is wrong
// with them. An error is about a path of the call, such as one that is not there.
func Validate(root *discover.Root, paths []string) (files []string, findings []Finding, err error) {
	host, err := discover.Read(root)
	if err != nil {
		return nil, nil, err
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, nil, err
		}
		group := []string{path}
		if info.IsDir() {
			if group, err = listSpecFiles(path); err != nil {
				return nil, nil, err
			}
		} else if !IsSpecFile(path) {
			findings = append(findings, Finding{path, "engines read only names that end in .yaml or .json"})
		}
		files = append(files, group...)
		findings = append(findings, validateGroup(root, host, group)...)
	}
	return files, findings, nil
}

// validateGroup checks files that engines read together.
func validateGroup(root *discover.Root, host *discover.Host, files []string) []Finding {
	var out []Finding
	owner := map[string]string{}
	for _, file := range files {
		spec, err := load(file)
		if err != nil {
			out = append(out, Finding{file, strings.TrimPrefix(err.Error(), file+": ")})
			continue
		}
		for _, d := range spec.Devices {
			name := spec.Kind + "=" + d.Name
			if first, taken := owner[name]; taken {
				out = append(out, Finding{file, fmt.Sprintf("%s is also in %s: engines know neither", name, first)})
				continue
			}
			owner[name] = file
		}
		texts := unfit(root, host, spec)
		updated := len(texts) > 0 && strings.HasPrefix(texts[0], otherDriver)
		for _, text := range stale(root, spec) {
			// After a driver's update all its files would be named.
			if !updated || !strings.HasPrefix(text, staleMount) {
				texts = append(texts, text)
			}
		}
		for _, text := range texts {
			out = append(out, Finding{file, text})
		}
	}
	return out
}

// load reads a file as an engine would, but survives what an engine's library
// does not.
func load(path string) (spec *specs.Spec, err error) {
	data, err := readSpecFile(path)
	if err != nil {
		return nil, err
	}
	if spec, err = parse(data); err != nil {
		return nil, err
	}
	if err := check(spec); err != nil {
		return nil, err
	}
	if !IsSpecFile(path) {
		return spec, nil
	}
	defer func() {
		if r := recover(); r != nil {
			spec, err = nil, fmt.Errorf("makes the CDI library panic: %v", r)
		}
	}()
	_, err = reference.ReadSpec(path, 0)
	return spec, err
}

// stale are the paths that a spec names and that are not there, or not what the
// spec needs them to be.
func stale(root *discover.Root, spec *specs.Spec) []string {
	var out []string
	add := func(text string) {
		if text != "" && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	for _, edits := range allEdits(spec) {
		for _, n := range edits.DeviceNodes {
			add(staleNode(root, n))
		}
		for _, m := range edits.Mounts {
			if !root.Exists(m.HostPath) && filepath.IsAbs(m.HostPath) {
				add(staleMount + m.HostPath + " does not exist")
			}
		}
		for _, h := range edits.Hooks {
			add(staleHook(root, h))
		}
	}
	return out
}

const staleMount = "mount "

func staleNode(root *discover.Root, n *specs.DeviceNode) string {
	path := n.HostPath
	if path == "" {
		path = n.Path
	}
	if !root.Exists(path) {
		return "device node " + path + " does not exist"
	}
	if !root.Live() {
		return ""
	}
	if info, err := root.Stat(path); err == nil && info.Mode()&(fs.ModeDevice|fs.ModeNamedPipe) == 0 {
		return "device node " + path + " is " + info.Mode().String()
	}
	return ""
}

func staleHook(root *discover.Root, h *specs.Hook) string {
	if !root.Live() {
		return ""
	}
	info, err := root.Stat(h.Path)
	switch {
	case err != nil:
		return "hook " + h.Path + " does not exist"
	case !info.Mode().IsRegular() || !executable(info):
		return "hook " + h.Path + " is " + info.Mode().String() + ", no program"
	}
	return ""
}
