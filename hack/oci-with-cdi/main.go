// Command oci-with-cdi edits an OCI configuration as an engine that knows CDI does,
// with the reference library, for machines that have an OCI runtime but no engine.
//
//	oci-with-cdi SPEC-DIRECTORY DEVICE... <config.json >edited.json
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: oci-with-cdi SPEC-DIRECTORY DEVICE... <config.json >edited.json")
		os.Exit(2)
	}
	if err := edit(os.Stdin, os.Stdout, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "oci-with-cdi:", err)
		os.Exit(1)
	}
}

// edit injects devices of the specs in dir. A spec that the library refuses is an
// error here, not a device that is silently missing.
func edit(in io.Reader, out io.Writer, dir string, devices []string) error {
	var config specs.Spec
	if err := json.NewDecoder(in).Decode(&config); err != nil {
		return fmt.Errorf("read the OCI configuration: %w", err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	for path, errs := range cache.GetErrors() {
		return fmt.Errorf("%s: %w", path, errs[0])
	}
	if missing, err := cache.InjectDevices(&config, devices...); err != nil {
		return fmt.Errorf("inject %v (unknown: %v): %w", devices, missing, err)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(config)
}
