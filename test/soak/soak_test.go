// Package soak does thousands of random things with NICs and containers, and
// looks whether all is as before when the containers are gone.
//
// The steps come in rounds. A round's steps follow from its seed, which is the
// name of its subtest, save for how the workers take turns:
//
//	go test ./test/soak -duration 1s -seed 4711
package soak

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"podrail/internal/hookapi"
	"podrail/internal/nstest"
	"podrail/pkg/netdev"
	"podrail/test/rig"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

var (
	duration = flag.Duration("duration", 15*time.Second, "how long to go on")
	seed     = flag.Uint64("seed", 0, "the first round's seed; 0 is a new one on every run")
)

const (
	workers       = 4
	stepsPerRound = 40 // of each worker
)

var nics = []string{"gpu0rdma0", "gpu1rdma0", "gpu2rdma0", "gpu3rdma0", "gpu4rdma0", "gpu5rdma0", "gpu6rdma0", "gpu7rdma0"}

func TestMain(m *testing.M) { nstest.Main(m) }

// TestSoak runs the hook as a runtime does: a process for each call.
func TestSoak(t *testing.T) {
	h := rig.NewHost(t, nics...)
	rig.Program(t)
	before := h.Snapshot(t)
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano()) % 1e9
	}
	fmt.Printf("soak: first seed %d\n", s)
	total := map[string]int{}
	namespaces, files := networkNamespaces(t), openFiles(t)
	said := time.Now()
	for end := said.Add(*duration); time.Now().Before(end) && !t.Failed(); s++ {
		if time.Since(said) > time.Minute {
			said = time.Now()
			fmt.Printf("soak: at seed %d, %v to go, did %v\n", s, time.Until(end).Round(time.Second), total)
		}
		t.Run(fmt.Sprintf("seed=%d", s), func(t *testing.T) {
			r := &round{t: t, host: h, count: total}
			r.run(s)
			// The kernel detects duplicate addresses and takes namespaces apart when it
			// has time.
			nstest.Eventually(t, 10*time.Second, func() error {
				if diff := h.Difference(t, before); diff != "" {
					return fmt.Errorf("not as before (-before +after):\n%s", diff)
				}
				if now := networkNamespaces(t); len(now) != len(namespaces) {
					return fmt.Errorf("network namespaces are left: %v, before there were %v", now, namespaces)
				}
				return nil
			})
		})
	}
	if now := openFiles(t); now > files {
		t.Errorf("the test has %d open files, before it had %d", now, files)
	}
	if !t.Failed() {
		fmt.Printf("soak: did %v: no difference, no namespace, no open file, no journal entry, no pin is left\n", total)
	}
}

// TestInProcess calls the library from many goroutines of one process, and looks
// whether that leaves descriptors or threads.
func TestInProcess(t *testing.T) {
	h := rig.NewHost(t, nics...)
	before := h.Snapshot(t)
	hook := netdev.Hook{Dir: filepath.Join("/run", "in-process"), LockWait: time.Minute}
	move := func(worker int) {
		c := nstest.Process(t)
		defer c.Kill(t)
		var netdevs []hookapi.Netdev
		for _, nic := range nics[worker*2 : worker*2+2] {
			netdevs = append(netdevs, hookapi.Netdev{Name: nic})
		}
		id := fmt.Sprintf("c%d", worker)
		h.Do(t, func() {
			if err := hook.Attach(id, c.PID, netdevs); err != nil {
				t.Error(err)
			}
			if _, _, err := hook.Status(); err != nil {
				t.Error(err)
			}
		})
		// A refusal must not leave anything, either.
		h.Do(t, func() {
			if hook.Attach("other", c.PID, []hookapi.Netdev{{Name: "nosuch"}}) == nil {
				t.Error("attached a NIC that is not there")
			}
			if _, err := hook.Reconcile(0); err != nil {
				t.Error(err)
			}
			if err := hook.Release(id); err != nil {
				t.Error(err)
			}
		})
	}
	all := func() {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() { move(w) })
		}
		wg.Wait()
	}
	all() // what the Go runtime keeps for good, it has by now
	runtime.GC()
	// From here on a file is closed by whoever opened it, or counts as lost.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	files, threads := openFiles(t), threadCount(t)
	for end := time.Now().Add(*duration / 5); time.Now().Before(end) && !t.Failed(); {
		all()
	}
	if now := openFiles(t); now > files {
		t.Errorf("%d files are open, before there were %d", now, files)
	}
	if now := threadCount(t); now > threads+2*workers {
		t.Errorf("%d threads, before there were %d", now, threads)
	}
	h.WantAsBefore(t, before)
}

func openFiles(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func threadCount(t testing.TB) int {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(threads)
}

// networkNamespaces are those that anything here holds: a process, an open file
// of one, or a mount.
func networkNamespaces(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, "net:[") {
				all = append(all, target)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasPrefix(f[3], "net:[") {
			all = append(all, f[3])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
