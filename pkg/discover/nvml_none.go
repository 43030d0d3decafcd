//go:build !cgo

package discover

import "slices"

// WantsNVML says whether NVML may know what procfs does not: MIG devices' UUIDs.
func (h *Host) WantsNVML(*Root) bool {
	return slices.ContainsFunc(h.GPUs, func(g GPU) bool { return g.MIG != nil })
}

// AskNVML needs a build with cgo.
func (h *Host) AskNVML(string) error { return ErrNoNVML }
