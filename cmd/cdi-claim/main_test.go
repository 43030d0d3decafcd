package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"podrail/internal/golden"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"cdi-claim": main})
}

// TestScripts runs cdi-claim as a person would, and cdi-gen behind it. Scripts
// see host trees as "hosts", published claims as "published" and the specs that
// cdi-gen's own tests compare with as "specs".
func TestScripts(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "podrail/cmd/cdi-gen")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	links := map[string]string{
		"hosts":     "../../testdata/hosts",
		"published": "../../internal/claim/testdata/published",
		"specs":     "../cdi-gen/testdata/specs",
		"cdi-gen":   filepath.Join(bin, "cdi-gen"),
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: golden.Update(),
		Setup: func(env *testscript.Env) error {
			for name, target := range links {
				target, err := filepath.Abs(target)
				if err != nil {
					return err
				}
				if err := os.Symlink(target, filepath.Join(env.WorkDir, name)); err != nil {
					return fmt.Errorf("link %s: %w", name, err)
				}
			}
			return nil
		},
	})
}
