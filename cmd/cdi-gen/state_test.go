package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// jail is an a4-highgpu-8g as "/": the programs take it for the live host, with
// the state of one. Its NICs are RDMA devices alone, for netlink is the machine's.
type jail struct{ dir string }

func newJail(t *testing.T) jail {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "host")
	if out, err := exec.Command("cp", "-a", filepath.Join(hosts, "a4-highgpu-8g"), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Rename(filepath.Join(dir, "proc/driver"), filepath.Join(dir, "driver")); err != nil {
		t.Fatal(err)
	}
	// An Ethernet RDMA device without an interface would be somebody's.
	err := filepath.WalkDir(filepath.Join(dir, "sys/devices"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "link_layer" {
			err = os.WriteFile(path, []byte("InfiniBand\n"), 0o644)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "cdi-gen"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	j := jail{dir}
	if got := j.run("", "version"); got.status != 0 {
		if os.Geteuid() == 0 {
			t.Fatal(got)
		}
		t.Skip("needs root, or user namespaces: ", got.stderr)
	}
	return j
}

// enter makes the jail the root of a program in a mount namespace of its own. A
// real procfs is needed, with the driver's files from the tree.
const enter = `mount --rbind /proc "$0/proc" && mount --bind "$0/driver" "$0/proc/driver" && exec chroot "$0" /cdi-gen "$@"`

func (j jail) run(stdin string, args ...string) result {
	flags := []string{"--mount", "--propagation", "private"}
	if os.Geteuid() != 0 {
		flags = append(flags, "--map-root-user")
	}
	cmd := exec.Command("unshare", slices.Concat(flags, []string{"sh", "-c", enter, j.dir}, args)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		return result{-1, "", err.Error()}
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// generate writes specs of a name that need no hook.
func (j jail) generate(stdin, name string, args ...string) result {
	return j.run(stdin, append([]string{"generate", "--name", name, "--nic-mode", "devices", "--output", "/run/cdi",
		"--driver-root", "/home/kubernetes/bin/nvidia"}, args...)...)
}

// held are the nodes in the specs of a name.
func (j jail) held(t *testing.T, name string) []string {
	t.Helper()
	nodes := map[string]bool{}
	files, _ := filepath.Glob(filepath.Join(j.dir, "run/cdi", "*_"+name+".yaml"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.Fields(string(data)) {
			base := filepath.Base(word)
			if strings.HasPrefix(word, "/dev/") && strings.ContainsAny(base, "01234567") && !strings.HasPrefix(base, "umad") {
				nodes[base] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// TestTaken has calls at the same time, each for two GPUs and their NICs: four
// of them get them, and no device is given twice.
func TestTaken(t *testing.T) {
	t.Parallel()
	j := newJail(t)
	const calls = 12
	results := make([]result, calls)
	var wait sync.WaitGroup
	for i := range calls {
		wait.Go(func() {
			results[i] = j.generate("", fmt.Sprint("job", i), "--gpus", "count=2", "--align")
		})
	}
	wait.Wait()
	owner := map[string]string{}
	done := 0
	for i, r := range results {
		name := fmt.Sprint("job", i)
		nodes := j.held(t, name)
		if r.status != 0 {
			if !strings.Contains(r.stderr, "there are 0 free GPUs of 8") || len(nodes) > 0 {
				t.Errorf("%s: %v, specs of %v", name, r, nodes)
			}
			continue
		}
		done++
		if len(nodes) != 4 {
			t.Errorf("%s has %v", name, nodes)
		}
		for _, n := range nodes {
			if owner[n] != "" {
				t.Errorf("%s is both %s's and %s's", n, owner[n], name)
			}
			owner[n] = name
		}
	}
	if done != 4 || len(owner) != 16 {
		t.Errorf("%d calls got devices, %d devices are taken: %v", done, len(owner), results)
	}
	if got := j.run("", "topology", "--check"); got.status != 0 {
		t.Errorf("not aligned: %v", got)
	}
}

// TestTakenMeanwhile is an allocation that was right when it was made.
func TestTakenMeanwhile(t *testing.T) {
	t.Parallel()
	j := newJail(t)
	const allocation = `{"gpus":[{"name":"0"},{"name":"1"}],"nics":[{"name":"mlx5_0"}]}`
	expect := func(what string, got result, status int, stderr string) {
		t.Helper()
		if got.status != status || !strings.Contains(got.stderr, stderr) {
			t.Errorf("%s: %v, expected %d, %q", what, got, status, stderr)
		}
	}
	expect("first", j.generate(allocation, "job1", "--allocation", "-"), 0, "")
	expect("again", j.generate(allocation, "job1", "--allocation", "-"), 0, "")
	expect("another", j.generate(allocation, "job2", "--allocation", "-"), 1,
		"already taken: GPU 0 (job1), GPU 1 (job1), NIC mlx5_0 (job1); give other devices")
	if files, _ := filepath.Glob(filepath.Join(j.dir, "run/cdi/*job2*")); len(files) > 0 {
		t.Errorf("wrote %v", files)
	}
	expect("not taken without a name", j.run("", "generate", "--gpus", "0", "--output", "/specs", "--driver-root", "/home/kubernetes/bin/nvidia"), 0, "devices of others")
	expect("a look takes nothing", j.generate("", "job3", "--gpus", "2", "--output", "-"), 0, "")
	expect("so it is free", j.generate("", "job4", "--gpus", "2"), 0, "")
	expect("a spec that cannot be written takes nothing", j.generate("", "job5", "--gpus", "3", "--output", "/cdi-gen/x"), 1, "")
	expect("so it is free, too", j.generate("", "job6", "--gpus", "3"), 0, "")
	expect("removed", j.run("", "remove", "--name", "job1", "--output", "/run/cdi"), 0, "")
	expect("and free", j.generate(allocation, "job2", "--allocation", "-"), 0, "")
	expect("owners", j.run("", "topology", "-o", "svg", "--owners"), 0, "")

	state := filepath.Join(j.dir, "run/cdi-gen/allocations/job4.json")
	if err := os.WriteFile(state, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	expect("a broken record", j.generate("", "job7", "--gpus", "5"), 1, "/run/cdi-gen/allocations/job4.json is not an allocation")
}
