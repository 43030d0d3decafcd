package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"podrail/internal/golden"
	"podrail/internal/hookapi"
	"podrail/internal/nstest"
)

// TestMain runs the tests in namespaces of their own, with an empty /run, and is
// netdev-hook where the scripts call that.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "netdev-hook" {
		main()
	}
	// All scripts have the same network namespace and journal: one after the other.
	flag.Parse() // what the command line says comes first, and must not count
	if err := flag.Set("test.parallel", "1"); err != nil {
		panic(err)
	}
	nstest.Main(m)
}

// TestScripts runs netdev-hook as a runtime and an operator do.
func TestScripts(t *testing.T) {
	nstest.Require(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "netdev-hook")); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: golden.Update(),
		Cmds:          map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")
			env.Setenv("JOURNAL", hookapi.Dir)
			huge := fmt.Appendf(nil, `{"id":"c1","pid":1,"annotations":{"a":%q}}`, strings.Repeat("x", maxState))
			return errors.Join(os.RemoveAll(hookapi.Dir), os.WriteFile(filepath.Join(env.WorkDir, "huge.json"), huge, 0o600))
		},
	})
}

// exits runs a program and checks its exit status: "exits 2 netdev-hook status x".
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS PROGRAM [ARGUMENT ...]")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}
