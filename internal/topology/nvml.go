//go:build cgo

package topology

import (
	"fmt"
	"strings"

	"podrail/pkg/discover"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// liveLinks asks NVML, which is loaded if it is there. A link goes to another
// GPU, or to a switch that all GPUs are connected to: two GPUs with so many
// links to switches reach each other over the lesser number of them.
func liveLinks(host *discover.Host) Links {
	if len(host.GPUs) < 2 || nvml.Init() != nvml.SUCCESS {
		return nil
	}
	defer nvml.Shutdown()
	links := Links{}
	switched := map[string]int{}
	for _, gpu := range host.GPUs {
		device, ret := nvml.DeviceGetHandleByUUID(gpu.UUID)
		if ret != nvml.SUCCESS {
			continue
		}
		for n := range nvml.NVLINK_MAX_LINKS {
			if state, ret := device.GetNvLinkState(n); ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
				continue
			}
			kind, ret := device.GetNvLinkRemoteDeviceType(n)
			if ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				switched[gpu.PCIAddress]++
				continue
			}
			remote, ret := device.GetNvLinkRemotePciInfo(n)
			if ret != nvml.SUCCESS {
				continue
			}
			other := fmt.Sprintf("%04x:%02x:%02x.0", remote.Domain, remote.Bus, remote.Device)
			// Each end counts each link once: the lesser address does.
			if strings.Compare(gpu.PCIAddress, other) < 0 {
				links[pair(gpu.PCIAddress, other)]++
			}
		}
	}
	for a, n := range switched {
		for b, m := range switched {
			if a < b {
				links[pair(a, b)] += min(n, m)
			}
		}
	}
	return links
}
