// Package cdi turns devices into CDI specs, and writes, reads, checks and
// removes spec files.
//
// The model is one direction: an allocation (a [discover.Devices], a subset of
// what the host has) becomes one [Spec] for each kind, GPUs and NICs; the specs
// of one call become the files of one name in one directory, all or none.
//
//	root, err := discover.OpenRoot("/")
//	host, err := discover.Read(root)
//	built, err := cdi.Build(root, host, host.Devices, cdi.Options{HookPath: "/usr/bin/netdev-hook"})
//	for _, spec := range built.Specs {
//		data, err := spec.Marshal(cdi.YAML)
//	}
//
// The format is https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md.
package cdi

import (
	"fmt"
	"slices"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// The kinds that Build uses unless told otherwise.
const (
	DefaultGPUKind = "nvidia.com/gpu"
	DefaultNICKind = "dra.net/nic"
)

// Options say how devices become specs. The zero value is usable for GPUs; NICs
// with a hook need HookPath.
type Options struct {
	// Name tells the specs of one pod from those of others in the same
	// directory: it prefixes device names and is in the file names.
	Name string
	// GPUKind and NICKind are VENDOR/CLASS; empty means the defaults.
	GPUKind, NICKind string
	// DriverRoot is where the driver's files are, below the root that is read.
	// It is in a mount's hostPath, never in its containerPath.
	DriverRoot string
	// Capabilities are those of the driver that a container needs; empty means
	// DefaultCapabilities.
	Capabilities []Capability
	// LDCachePath, if not empty, is cdi-gen as the engine will call it, to have a
	// container's ld.so.cache name the driver's libraries.
	LDCachePath string
	// NICMode says how a NIC reaches the container; empty means NICAuto.
	NICMode NICMode
	// HookPath is netdev-hook as the engine will call it.
	HookPath string
	// NICConfig is what NICs shall be in the container; nil leaves them as they are.
	NICConfig NICConfig
	// Memlock is the locked memory that the hook lets a container have: bytes, a
	// number with K, M, G or T, or "unlimited"; empty leaves it as it is.
	Memlock string
	// MAD adds the NICs' umad nodes, for subnet management.
	MAD bool
	// NICLibraries adds the host's RDMA provider libraries.
	NICLibraries bool
	// Mounts and Env are added to each spec.
	Mounts []Mount
	Env    []string
}

// Built is what Build made.
type Built struct {
	// Specs has one spec for each kind with devices: GPUs first.
	Specs []*Spec
	// Absent are the kinds without devices.
	Absent []string
}

// Spec is a CDI spec and the name that its file has, without extension.
type Spec struct {
	specs.Spec
	FileName string
}

// Build makes the specs for the given devices of a host. It fails if anything
// that a spec must name is missing below root; what is optional and missing is
// left out.
func Build(root *discover.Root, host *discover.Host, given discover.Devices, o Options) (*Built, error) {
	if err := o.complete(root); err != nil {
		return nil, err
	}
	mounts, err := extraMounts(root, o.Mounts)
	if err != nil {
		return nil, err
	}
	var built Built
	for _, kind := range []struct {
		name  string
		count int
		build func() (*specs.Spec, error)
	}{
		{o.GPUKind, len(given.GPUs), func() (*specs.Spec, error) { return gpuSpec(root, host, given.GPUs, o) }},
		{o.NICKind, len(given.NICs), func() (*specs.Spec, error) { return nicSpec(root, host, given.NICs, o) }},
	} {
		if kind.count == 0 {
			built.Absent = append(built.Absent, kind.name)
			continue
		}
		spec, err := kind.build()
		if err != nil {
			return nil, err
		}
		edits := &spec.ContainerEdits
		edits.Mounts = append(edits.Mounts, mounts...)
		edits.Env = mergeEnv(edits.Env, o.Env)
		if err := finish(spec, kind.name, o.Name); err != nil {
			return nil, err
		}
		built.Specs = append(built.Specs, &Spec{Spec: *spec, FileName: FileName(kind.name, o.Name)})
	}
	return &built, nil
}

// complete fills in defaults and refuses what cannot be written.
func (o *Options) complete(root *discover.Root) error {
	if o.GPUKind == "" {
		o.GPUKind = DefaultGPUKind
	}
	if o.NICKind == "" {
		o.NICKind = DefaultNICKind
	}
	if o.GPUKind == o.NICKind {
		return fmt.Errorf("GPUs and NICs have the same kind %q: each needs its own", o.GPUKind)
	}
	for _, kind := range []string{o.GPUKind, o.NICKind} {
		if err := ValidateKind(kind); err != nil {
			return err
		}
	}
	if err := ValidateName(o.Name); err != nil {
		return err
	}
	if len(o.Capabilities) == 0 {
		o.Capabilities = slices.Clone(DefaultCapabilities)
	}
	if o.NICMode == "" || o.NICMode == NICAuto {
		o.NICMode = DetectNICMode(root)
	}
	return nil
}

// finish gives a spec its kind, its prefixed names and the lowest version that
// its content needs: Podman 4.3 refuses a version above 0.5.0, whatever is in
// the file.
func finish(spec *specs.Spec, kind, name string) error {
	spec.Kind = kind
	for i := range spec.Devices {
		spec.Devices[i].Name = DeviceName(name, spec.Devices[i].Name)
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return fmt.Errorf("spec of %s: %w", kind, err)
	}
	spec.Version = version
	return check(spec)
}

// QualifiedNames are the names by which an engine asks for the spec's devices:
// "nvidia.com/gpu=0".
func (s *Spec) QualifiedNames() []string {
	var names []string
	for _, d := range s.Devices {
		names = append(names, s.Kind+"="+d.Name)
	}
	return names
}
