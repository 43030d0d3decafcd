package netdev

import (
	"errors"
	"fmt"
	"path"

	"github.com/safchain/ethtool"
)

// readDriver reads what ethtool shows of a link's offload features and private
// flags, in the calling thread's network namespace: those that can be changed. A
// driver that has none, or does not say, yields none.
func readDriver(name string) (features, flags map[string]bool) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, nil
	}
	defer e.Close()
	features = map[string]bool{}
	states, _ := e.FeaturesWithState(name)
	for f, state := range states {
		if state.Available && !state.NeverChanged {
			features[f] = state.Requested
		}
	}
	flags, _ = e.PrivFlags(name)
	return features, flags
}

// legacyFeatures are the names that ethtool -K takes for whole groups of the
// kernel's features (off_flag_def in its ethtool.c), as patterns of path.Match.
var legacyFeatures = map[string]string{
	"rx-checksumming": "rx-checksum", "tx-checksumming": "tx-checksum-*", "scatter-gather": "tx-scatter-gather*",
	"tcp-segmentation-offload": "tx-tcp*-segmentation", "generic-segmentation-offload": "tx-generic-segmentation",
	"generic-receive-offload": "rx-gro", "large-receive-offload": "rx-lro", "rx-vlan-offload": "rx-vlan-hw-parse",
	"tx-vlan-offload": "tx-vlan-hw-insert", "ntuple-filters": "rx-ntuple-filter", "receive-hashing": "rx-hashing",
}

// byKernelNames replaces the names of groups by those of the features in them.
func byKernelNames(now, want map[string]bool) map[string]bool {
	out := map[string]bool{}
	for name, value := range want {
		pattern, ok := legacyFeatures[name]
		if !ok {
			out[name] = value
			continue
		}
		for feature := range now {
			if match, _ := path.Match(pattern, feature); match {
				out[feature] = value
			}
		}
	}
	return out
}

// setDriver sets those of a link's features and private flags that are not as
// wanted, in the calling thread's network namespace. A name that the driver does
// not have is an error.
func setDriver(name string, features, flags map[string]bool) error {
	if len(features) == 0 && len(flags) == 0 {
		return nil
	}
	nowFeatures, nowFlags := readDriver(name)
	features, flags = differing(nowFeatures, byKernelNames(nowFeatures, features)), differing(nowFlags, flags)
	if len(features) == 0 && len(flags) == 0 {
		return nil
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	var errs []error
	if len(features) > 0 {
		if err := e.Change(name, features); err != nil {
			errs = append(errs, fmt.Errorf("set ethtool features %v: %w", features, err))
		}
	}
	if len(flags) > 0 {
		if err := e.UpdatePrivFlags(name, flags); err != nil {
			errs = append(errs, fmt.Errorf("set ethtool private flags %v: %w", flags, err))
		}
	}
	return errors.Join(errs...)
}

func differing(now, want map[string]bool) map[string]bool {
	set := map[string]bool{}
	for name, value := range want {
		if is, ok := now[name]; !ok || is != value {
			set[name] = value
		}
	}
	return set
}
