package docs

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"podrail/internal/nstest"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	nstest.RequireRoot(t)
	cmd := exec.Command("make", "--silent", "-C", "../..", "demo")
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"NVIDIA B200", "kind: dra.net/nic", ": gpu0rdma0", "All as it was before."} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}
