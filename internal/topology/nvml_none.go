//go:build !cgo

package topology

import "podrail/pkg/discover"

// liveLinks needs NVML, which needs cgo.
func liveLinks(*discover.Host) Links { return nil }
