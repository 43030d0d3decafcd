package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"podrail/internal/hookapi"
	"podrail/pkg/discover"
)

// NICConfig says what NICs shall be in the container: by the NIC's name, or, by
// "", for every NIC.
type NICConfig map[string]*hookapi.NetworkConfig

// ParseNICConfig reads YAML or JSON: either one of DraNet's NetworkConfigs, for
// every NIC, or one for each of several NICs, by name. An unknown or invalid
// field is an error that names it.
func ParseNICConfig(data []byte) (NICConfig, error) {
	data, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || len(fields) == 0 {
		return nil, errors.New("expected a NetworkConfig, or NIC names with a NetworkConfig each")
	}
	if isNetworkConfig(fields) {
		c, err := hookapi.ParseNetworkConfig(data)
		return NICConfig{"": c}, err
	}
	all := NICConfig{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		c, err := hookapi.ParseNetworkConfig(fields[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("NIC %q: %w", name, err))
		}
		all[name] = c
	}
	return all, errors.Join(errs...)
}

func isNetworkConfig(fields map[string]json.RawMessage) bool {
	for _, name := range []string{"interface", "routes", "rules", "neighbors", "ethtool"} {
		if _, ok := fields[name]; ok {
			return true
		}
	}
	return false
}

// check fails for a configuration that no NIC gets, or that names the same
// interface for two.
func (c NICConfig) check(nics []discover.NIC) error {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if name != "" && !slices.ContainsFunc(nics, func(n discover.NIC) bool { return n.Name == name }) {
			return fmt.Errorf("NIC configuration: %q is none of the NICs that are given", name)
		}
	}
	if all := c[""]; all != nil && len(nics) > 1 && all.Interface.Name != "" && !strings.Contains(all.Interface.Name, "%d") {
		return fmt.Errorf("NIC configuration: interface.name %q cannot be the name of %d NICs: use %%d in it, or a configuration for each NIC", all.Interface.Name, len(nics))
	}
	if all := c[""]; all != nil && len(nics) > 1 && len(all.Interface.Addresses) > 0 {
		return fmt.Errorf("NIC configuration: interface.addresses cannot be those of %d NICs: write a configuration for each NIC", len(nics))
	}
	return nil
}

func (c NICConfig) of(nic discover.NIC) *hookapi.NetworkConfig {
	if own := c[nic.Name]; own != nil {
		return own
	}
	return c[""]
}
