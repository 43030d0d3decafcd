package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"podrail/pkg/cdi"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
)

// ldcacheCommand is the createContainer hook of specs made with --ldcache.
func (p *program) ldcacheCommand() *cli.Command {
	return &cli.Command{
		Name:      cdi.LDCacheCommand,
		Usage:     "name libraries in a container's ld.so.cache; called by OCI runtimes",
		UsageText: "cdi-gen " + cdi.LDCacheCommand + " LIBRARY ... < state.json",
		Hidden:    true,
		Action:    p.ldcacheHook,
	}
}

func (p *program) ldcacheHook(c *cli.Context) error {
	rootfs, err := containerRoot(p.stdin)
	if err != nil {
		return fmt.Errorf("OCI state: %w", err)
	}
	err = cdi.UpdateLDCache(rootfs, c.Args().Slice())
	if errors.Is(err, cdi.ErrLeftAlone) { // the loader does without
		p.log.Info(err.Error())
		return nil
	}
	return err
}

// maxState bounds the OCI state and a container's configuration.
const maxState = 16 << 20

// containerRoot is the container's root file system: crun says it in the state,
// and may have "/" for the bundle; runc says it in the bundle.
func containerRoot(r io.Reader) (string, error) {
	var state struct {
		Root, Bundle string
	}
	if err := json.NewDecoder(io.LimitReader(r, maxState)).Decode(&state); err != nil {
		return "", err
	}
	if state.Root != "" {
		return absolute(state.Root, state.Bundle)
	}
	f, err := os.Open(filepath.Join(state.Bundle, "config.json"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	var config specs.Spec
	if err := json.NewDecoder(io.LimitReader(f, maxState)).Decode(&config); err != nil {
		return "", fmt.Errorf("%s: %w", f.Name(), err)
	}
	if config.Root == nil || config.Root.Path == "" {
		return "", fmt.Errorf("%s: has no root", f.Name())
	}
	return absolute(config.Root.Path, state.Bundle)
}

// absolute refuses "/", which is the host's.
func absolute(root, bundle string) (string, error) {
	if !filepath.IsAbs(root) {
		root = filepath.Join(bundle, root)
	}
	if filepath.Clean(root) == "/" {
		return "", errors.New(`says that the container's root is "/"`)
	}
	return root, nil
}
