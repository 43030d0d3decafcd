package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// maxState bounds the state that a runtime writes to the hook. Annotations are
// the only part of it without a size; Kubernetes allows 256 KiB of them.
const maxState = 4 << 20

// readState reads the OCI state (runtime-spec, runtime.md "State") of the
// container that a hook runs for.
func readState(r io.Reader) (specs.State, error) {
	var state specs.State
	if f, ok := r.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			return state, errors.New("stdin is a terminal: a runtime writes the container's state there; this command is for OCI runtimes to call")
		}
	}
	data, err := io.ReadAll(io.LimitReader(r, maxState+1))
	switch {
	case err != nil:
		return state, fmt.Errorf("read the container's state from stdin: %w", err)
	case len(data) == 0:
		return state, fmt.Errorf("stdin is empty: a runtime writes the container's state there; this command is for OCI runtimes to call")
	case len(data) > maxState:
		return state, fmt.Errorf("the state on stdin has more than %d bytes", maxState)
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return state, fmt.Errorf("the state on stdin is not JSON as the OCI runtime specification has it: %w", err)
	}
	return state, checkID(state.ID)
}

// checkID refuses an id that no runtime gives (runc: libcontainer's idRegex;
// crun has no rule, but engines give hex): the id is written to logs and files.
func checkID(id string) error {
	if id == "" || len(id) > 1024 {
		return fmt.Errorf("the state on stdin has an id of %d bytes, expected 1 to 1024", len(id))
	}
	valid := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_+-.", r)
	}
	if id == "." || id == ".." || strings.ContainsFunc(id, func(r rune) bool { return !valid(r) }) {
		return fmt.Errorf("the state on stdin has the id %q, expected letters, digits and any of _+-.", id)
	}
	return nil
}

// oneLine makes an error one line: several that were joined are separated by "; ",
// and one that comes twice (undoing fails as doing did) is said once.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' })
	return strings.Join(slices.Compact(lines), "; ")
}
