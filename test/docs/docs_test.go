// Package docs runs the commands that the documentation tells readers to run.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"podrail/internal/nstest"
	"podrail/test/machine"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

func TestMain(m *testing.M) { nstest.Main(m) }

// block is what is fenced as sh.
var block = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestPages runs each page's blocks in their order, in one shell.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../../README.md", "../../CONTRIBUTING.md")
	for _, page := range pages {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			var script strings.Builder
			for _, m := range block.FindAllStringSubmatch(string(text), -1) {
				script.WriteString(m[1])
			}
			if script.Len() > 0 {
				run(t, script.String())
			}
		})
	}
}

// prelude makes the machine a host for cdi-gen, also where the tests run in a
// container: --nic-mode=auto would take it for a pod with a network of its own.
const prelude = `
cdi-gen() {
	if [[ $1 == generate && "$*" != *--root* ]]; then set -- "$@" --nic-mode hook; fi
	command cdi-gen "$@"
}
`

func run(t *testing.T, script string) {
	m := machine.New(t)
	m.NIC(t, "gpu0rdma0", 1)
	m.NIC(t, "gpu1rdma0", 2)
	m.Run(t, "sh", "-c", "tar -C "+machine.Rootfs+" -c . | podman import - localhost/busybox")
	// Pages are read in the root of the tree; what they write there goes with the copy.
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS("../../testdata")); err != nil {
		t.Fatal(err)
	}
	m.Write(t, "/run/machine/page", prelude+"cd "+dir+"\n"+script)
	r := m.Try(t, "bash", "-euxo", "pipefail", "/run/machine/page")
	if r.Status != 0 {
		t.Errorf("exit status %d\n%s", r.Status, r.Stderr)
	}
}
