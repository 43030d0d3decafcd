package machine

import (
	"strings"
	"testing"

	"podrail/internal/nstest"
)

// Engine is Podman on a machine, with one of its OCI runtimes.
type Engine struct {
	*Machine
	// Global options come before the command: "--runtime=crun".
	Global []string
}

// args puts the global options before a command.
func (e Engine) args(args []string) []string {
	return append(e.Global[:len(e.Global):len(e.Global)], args...)
}

// Podman runs a podman command and returns what it wrote to stdout. If it fails,
// the test ends.
func (e Engine) Podman(t testing.TB, args ...string) string {
	t.Helper()
	return e.Run(t, "podman", e.args(args)...)
}

// TryPodman runs a podman command, whatever comes of it.
func (e Engine) TryPodman(t testing.TB, args ...string) Result {
	t.Helper()
	return e.Try(t, "podman", e.args(args)...)
}

// Inside is the network namespace of a running container.
func (e Engine) Inside(t testing.TB, container string) *nstest.Namespace {
	t.Helper()
	pid := strings.TrimSpace(e.Podman(t, "inspect", "--format", "{{.State.Pid}}", container))
	return e.NamespaceOf(t, pid)
}
