package cdi

import (
	"errors"
	"fmt"
	"slices"

	reference "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// check is the reference library's validation of a spec in memory (its own
// needs a file), with what the library does not look at or panics on.
func check(spec *specs.Spec) error {
	if err := ValidateKind(spec.Kind); err != nil {
		return err
	}
	if err := checkNull(spec); err != nil {
		return fmt.Errorf("spec of %s: %w", spec.Kind, err)
	}
	if err := specs.ValidateVersion(spec); err != nil {
		return err
	}
	if err := checkEdits(&spec.ContainerEdits); err != nil {
		return fmt.Errorf("spec of %s: %w", spec.Kind, err)
	}
	if len(spec.Devices) == 0 {
		return fmt.Errorf("spec of %s: has no devices", spec.Kind)
	}
	seen := map[string]bool{}
	for _, d := range spec.Devices {
		if err := parser.ValidateDeviceName(d.Name); err != nil {
			return fmt.Errorf("spec of %s: %w", spec.Kind, err)
		}
		if seen[d.Name] {
			return fmt.Errorf("spec of %s: device %q is there twice", spec.Kind, d.Name)
		}
		seen[d.Name] = true
		if err := checkEdits(&d.ContainerEdits); err != nil {
			return fmt.Errorf("spec of %s: device %s: %w", spec.Kind, d.Name, err)
		}
	}
	return nil
}

func checkEdits(e *specs.ContainerEdits) error {
	return (&reference.ContainerEdits{ContainerEdits: e}).Validate()
}

// checkNull refuses a list with an empty element ("deviceNodes: [null]"), which
// the reference library dereferences.
func checkNull(spec *specs.Spec) error {
	for _, e := range allEdits(spec) {
		if slices.Contains(e.DeviceNodes, nil) || slices.Contains(e.Mounts, nil) ||
			slices.Contains(e.Hooks, nil) || slices.Contains(e.NetDevices, nil) {
			return errors.New("a list of container edits has an empty element")
		}
	}
	return nil
}

// allEdits are those of the spec and of its devices.
func allEdits(spec *specs.Spec) []*specs.ContainerEdits {
	all := []*specs.ContainerEdits{&spec.ContainerEdits}
	for i := range spec.Devices {
		all = append(all, &spec.Devices[i].ContainerEdits)
	}
	return all
}
