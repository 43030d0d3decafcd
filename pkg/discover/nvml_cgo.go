//go:build cgo

package discover

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// WantsNVML says whether NVML may know what procfs does not: MIG devices' UUIDs,
// and whether a GPU without any is in MIG mode.
func (h *Host) WantsNVML(root *Root) bool {
	return slices.ContainsFunc(h.GPUs, func(g GPU) bool {
		return g.MIG != nil || g.UUID != "" && root.Exists(path.Join(capabilitiesDir, "gpu"+strconv.Itoa(g.Minor), "mig"))
	})
}

// AskNVML loads NVML from a file, initialises it once, and completes the
// inventory. If that fails, the inventory is as it was.
func (h *Host) AskNVML(library string) error {
	return h.ask(nvml.New(nvml.WithLibraryPath(library)))
}

func (h *Host) ask(lib nvml.Interface) (err error) {
	// Init of go-nvml cannot tell a missing symbol from a library of something
	// else; it panics on some.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("NVML: %v", r)
		}
	}()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return failed("initialising NVML", ret)
	}
	defer lib.Shutdown()
	var errs []error
	for _, uuid := range h.parents() {
		enabled, parts, err := askGPU(lib, uuid)
		if err != nil {
			errs = append(errs, fmt.Errorf("GPU %s: %w", uuid, err))
			continue
		}
		h.applyNVML(uuid, enabled, parts)
	}
	return errors.Join(errs...)
}

// parents are the UUIDs of all GPUs, cut into MIG devices or not.
func (h *Host) parents() []string {
	var out []string
	for _, g := range h.GPUs {
		uuid := g.UUID
		if g.MIG != nil {
			uuid = g.MIG.Parent
		}
		if uuid != "" && !slices.Contains(out, uuid) {
			out = append(out, uuid)
		}
	}
	return out
}

func askGPU(lib nvml.Interface, uuid string) (enabled bool, parts []nvmlPart, err error) {
	gpu, ret := lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return false, nil, failed("finding it", ret)
	}
	mode, _, ret := gpu.GetMigMode()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		return false, nil, nil
	case ret != nvml.SUCCESS:
		return false, nil, failed("reading its MIG mode", ret)
	case mode != nvml.DEVICE_MIG_ENABLE:
		return false, nil, nil
	}
	most, ret := gpu.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return true, nil, failed("counting its MIG devices", ret)
	}
	for i := range most {
		device, ret := gpu.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			return true, nil, failed(fmt.Sprintf("MIG device %d", i), ret)
		}
		part := nvmlPart{index: i}
		var rets [3]nvml.Return
		part.uuid, rets[0] = device.GetUUID()
		part.gi, rets[1] = device.GetGpuInstanceId()
		part.ci, rets[2] = device.GetComputeInstanceId()
		for _, ret := range rets {
			if ret != nvml.SUCCESS {
				return true, nil, failed(fmt.Sprintf("MIG device %d", i), ret)
			}
		}
		parts = append(parts, part)
	}
	return true, parts, nil
}

// failed is an error without asking the library for its text, which one that
// did not load has not got.
func failed(what string, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("%s: the library cannot be loaded", what)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%s: the library's version is not the kernel driver's", what)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("%s: the driver is not loaded", what)
	}
	return fmt.Errorf("%s: NVML error %d", what, ret)
}
