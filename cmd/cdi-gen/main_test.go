package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"podrail/internal/golden"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"cdi-gen": main})
}

// hosts are the host trees; scripts see them as "hosts".
const hosts = "../../testdata/hosts"

// TestScripts runs cdi-gen as a person would, in a directory of each script's own.
func TestScripts(t *testing.T) {
	t.Parallel()
	trees, err := filepath.Abs(hosts)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: golden.Update(),
		Setup: func(env *testscript.Env) error {
			return os.Symlink(trees, filepath.Join(env.WorkDir, "hosts"))
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
	})
}

// result is what one call of cdi-gen did.
type result struct {
	status         int
	stdout, stderr string
}

func cdiGen(stdin string, args ...string) result {
	var stdout, stderr bytes.Buffer
	status := run(append([]string{"cdi-gen"}, args...), strings.NewReader(stdin), &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}
