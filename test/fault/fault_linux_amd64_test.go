package fault

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/nstest"
	"podrail/test/rig"
)

// stride is the distance of the points that are tested. Each of the ways to fail
// and to recover starts at another one, so that a short run sees all parts;
// `make test-faults` tests every point in every way.
var stride = flag.Int("stride", 31, "test every n-th system call that changes something")

// leastPoints is what the tests want to find on either side.
const leastPoints = 20

// nics go in and home in one call; bystander stays.
var (
	nics      = []string{"gpu0rdma0", "gpu1rdma0"}
	bystander = "gpu2rdma0"
)

func newHost(t *testing.T) (*rig.Host, string) {
	h := rig.NewHost(t, append(nics, bystander)...)
	return h, h.Snapshot(t)
}

// alone is a NIC without the rules of its namespace: those of NICs that are away
// show as detached.
func alone(t *testing.T, h *rig.Host, nic string) string {
	own, _, _ := strings.Cut(h.Snapshot(t, nic), "# ip -4 rule show")
	return own
}

// recoveries are what may happen next to NICs whose hook died: each must bring
// them home.
var recoveries = []struct {
	name string
	do   func(t *testing.T, h *rig.Host, c *nstest.Child)
}{
	{"container dies, reconcile", func(t *testing.T, h *rig.Host, c *nstest.Child) {
		c.Kill(t)
		h.Hook(t, "", "reconcile").Want(t, 0)
	}},
	{"reconcile, poststop", func(t *testing.T, h *rig.Host, c *nstest.Child) {
		h.Hook(t, "", "reconcile").Want(t, 0)
		h.Hook(t, rig.State("c1", 0), "poststop").Want(t, 0)
		c.Kill(t)
	}},
	{"the next container", func(t *testing.T, h *rig.Host, c *nstest.Child) {
		c.Kill(t)
		next := nstest.Process(t)
		h.Hook(t, rig.State("c2", next.PID), rig.Attach(nics...)...).Want(t, 0)
		for _, nic := range nics {
			next.Run(t, "ip", "addr", "show", "dev", nic)
		}
		h.Hook(t, rig.State("c2", 0), "poststop").Want(t, 0)
		next.Kill(t)
	}},
	{"the same container again", func(t *testing.T, h *rig.Host, c *nstest.Child) {
		h.Hook(t, rig.State("c1", c.PID), rig.Attach(nics...)...).Want(t, 0)
		h.Hook(t, rig.State("c1", 0), "poststop").Want(t, 0)
		c.Kill(t)
	}},
}

// side is one of the two hooks that move NICs.
type side struct {
	name string
	// before brings the NICs to where they are when the hook is called.
	before func(t *testing.T, h *rig.Host, c *nstest.Child)
	call   func(c *nstest.Child) (stdin string, args []string)
}

var sides = []side{
	{"createRuntime", func(*testing.T, *rig.Host, *nstest.Child) {}, func(c *nstest.Child) (string, []string) {
		return rig.State("c1", c.PID), rig.Attach(nics...)
	}},
	{"poststop", func(t *testing.T, h *rig.Host, c *nstest.Child) {
		h.Hook(t, rig.State("c1", c.PID), rig.Attach(nics...)...).Want(t, 0)
	}, func(c *nstest.Child) (string, []string) {
		return rig.State("c1", 0), []string{"poststop"}
	}},
}

// TestKilled kills the hook before and after each call that changes something.
func TestKilled(t *testing.T) {
	for _, side := range sides {
		t.Run(side.name, func(t *testing.T) {
			h, before := newHost(t)
			bystanderBefore := alone(t, h, bystander)
			points := 0
			for m, mode := range []mode{killBefore, killAfter} {
				for r, recovery := range recoveries {
					points = eachPoint(t, 1+(m*len(recoveries)+r)%*stride, func(at int) (outcome, bool) {
						c := nstest.Process(t)
						side.before(t, h, c)
						stdin, args := side.call(c)
						o := run(t, h, fault{mode: mode, at: at}, nil, stdin, args...)
						if len(o.calls) < at {
							settle(t, h, c, before)
							return o, false
						}
						where := fmt.Sprintf("%s call %d (%s), then %s", mode, at, o.calls[at-1], recovery.name)
						if !o.killed && !strings.HasPrefix(o.calls[at-1], "exit_group") {
							t.Fatalf("%s: the hook exited with %d: %s", where, o.Status, o.Stderr)
						}
						if alone(t, h, bystander) != bystanderBefore {
							t.Fatalf("%s: another NIC is not as before", where)
						}
						defer inform(t, where)()
						recovery.do(t, h, c)
						wantAsBefore(t, h, before)
						return o, true
					})
				}
			}
			if points < leastPoints {
				t.Errorf("found %d points, want at least %d", points, leastPoints)
			}
			t.Logf("%d points, each in %d ways", points, 2*len(recoveries))
		})
	}
}

// TestRefused lets each call that changes something fail. The hook says so in one
// line and has undone what it did, or reconcile does when the fault has gone; or
// it did without the call.
func TestRefused(t *testing.T) {
	for _, side := range sides {
		t.Run(side.name, func(t *testing.T) {
			h, before := newHost(t)
			bystanderBefore := alone(t, h, bystander)
			atOnce, failed := 0, 0
			points := 0
			for i, errno := range []unix.Errno{unix.ENOSPC, unix.EPERM, unix.EBUSY} {
				points = eachPoint(t, 1+i%*stride, func(at int) (outcome, bool) {
					c := nstest.Process(t)
					side.before(t, h, c)
					stdin, args := side.call(c)
					o := run(t, h, fault{refuse, at, errno}, nil, stdin, args...)
					if len(o.calls) < at {
						settle(t, h, c, before)
						return o, false
					}
					where := fmt.Sprintf("call %d (%s) answers %v", at, o.calls[at-1], errno)
					defer inform(t, where)()
					if o.killed || o.Status > 1 {
						t.Fatalf("the hook died with status %d: %s", o.Status, o.Stderr)
					}
					if lines := strings.Count(o.Stderr, "\n"); lines != o.Status {
						t.Fatalf("the hook exited with %d and wrote %d lines: %s", o.Status, lines, o.Stderr)
					}
					if alone(t, h, bystander) != bystanderBefore {
						t.Fatal("another NIC is not as before")
					}
					if o.Status == 1 {
						failed++
						if h.Difference(t, before) == "" {
							atOnce++
						}
					} else if side.name == "createRuntime" {
						h.Hook(t, rig.State("c1", 0), "poststop").Want(t, 0)
					}
					c.Kill(t)
					h.Hook(t, "", "reconcile").Want(t, 0)
					// Where the hook could not do without duplicate address detection,
					// the kernel needs a second for it; and an address that it refused
					// comes behind the others.
					nstest.Eventually(t, 5*time.Second, func() error {
						diff := cmp.Diff(sorted(before), sorted(h.Snapshot(t)))
						if left := rig.Left(t); diff != "" || len(left) > 0 {
							return fmt.Errorf("not as before (-before +after):\n%s%s", diff, left)
						}
						return nil
					})
					before = h.Snapshot(t)
					return o, true
				})
			}
			if points < leastPoints {
				t.Errorf("found %d points, want at least %d", points, leastPoints)
			}
			t.Logf("%d runs failed; in %d of them everything was as before when the hook ended", failed, atOnce)
		})
	}
}

// wantAsBefore allows for the second that the kernel may need for duplicate
// address detection: the hook does without, but for at most 100 ms, and on a busy
// machine the kernel is later.
func wantAsBefore(t *testing.T, h *rig.Host, before string) {
	t.Helper()
	nstest.Eventually(t, 5*time.Second, func() error {
		if diff := h.Difference(t, before); diff != "" {
			return fmt.Errorf("not as before (-before +after):\n%s", diff)
		}
		return nil
	})
}

// settle ends a run that had no fault in it.
func settle(t *testing.T, h *rig.Host, c *nstest.Child, before string) {
	t.Helper()
	c.Kill(t)
	h.Hook(t, "", "reconcile").Want(t, 0)
	wantAsBefore(t, h, before)
}

// sorted are the lines of a snapshot, so that the order of addresses does not count.
func sorted(snapshot string) []string {
	lines := strings.Split(snapshot, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], ",")
	}
	slices.Sort(lines)
	return lines
}

// eachPoint tests every stride-th point from one on, until there are no more. It
// returns how many there are.
func eachPoint(t *testing.T, from int, test func(at int) (outcome, bool)) int {
	t.Helper()
	for at := from; ; at += *stride {
		if o, hit := test(at); !hit {
			return len(o.calls)
		}
	}
}

// inform says where a test was when it ended.
func inform(t *testing.T, where string) func() {
	return func() {
		if t.Failed() {
			t.Logf("this happened: %s", where)
		}
	}
}

// The journal's directory is full: nothing moves.
func TestJournalFull(t *testing.T) {
	h, before := newHost(t)
	must(t, os.MkdirAll(hookapi.Dir, 0o700))
	must(t, unix.Mount("tmpfs", hookapi.Dir, "tmpfs", 0, "size=4k,mode=0700"))
	defer unix.Unmount(hookapi.Dir, unix.MNT_DETACH)
	must(t, os.WriteFile(hookapi.Dir+"/filler", make([]byte, 4096), 0o600))
	c := nstest.Process(t)
	r := h.Hook(t, rig.State("c1", c.PID), rig.Attach(nics...)...)
	r.Want(t, 1)
	if want := "netdev-hook: write the journal entry of gpu0rdma0: "; !strings.HasPrefix(r.Stderr, want) || !strings.Contains(r.Stderr, "no space left") {
		t.Errorf("the hook says %q, want %q", r.Stderr, want)
	}
	wantAsBefore(t, h, before)
}

// The journal's directory becomes full while the NICs are away: they come home.
func TestJournalFullLater(t *testing.T) {
	h, before := newHost(t)
	must(t, os.MkdirAll(hookapi.Dir, 0o700))
	must(t, unix.Mount("tmpfs", hookapi.Dir, "tmpfs", 0, "size=128k,mode=0700"))
	defer unix.Unmount(hookapi.Dir, unix.MNT_DETACH)
	c := nstest.Process(t)
	h.Hook(t, rig.State("c1", c.PID), rig.Attach(nics...)...).Want(t, 0)
	filler, err := os.Create(hookapi.Dir + "/filler")
	must(t, err)
	defer filler.Close()
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	h.Hook(t, rig.State("c1", 0), "poststop").Want(t, 0)
	c.Kill(t)
	h.Hook(t, "", "reconcile").Want(t, 0)
	must(t, os.Remove(filler.Name()))
	wantAsBefore(t, h, before)
}

// The container, and with it the namespace, vanishes at any point of an attach.
func TestContainerVanishes(t *testing.T) {
	h, before := newHost(t)
	eachPoint(t, 1+5%*stride, func(at int) (outcome, bool) {
		c := nstest.Process(t)
		o := run(t, h, fault{}, func(n int) {
			if n == at {
				must(t, unix.Kill(c.PID, unix.SIGKILL))
			}
		}, rig.State("c1", c.PID), rig.Attach(nics...)...)
		if len(o.calls) < at {
			settle(t, h, c, before)
			return o, false
		}
		defer inform(t, fmt.Sprintf("the container is killed before call %d (%s)", at, o.calls[at-1]))()
		if o.Status > 1 {
			t.Fatalf("the hook exited with %d: %s", o.Status, o.Stderr)
		}
		c.Kill(t)
		h.Hook(t, "", "reconcile").Want(t, 0)
		wantAsBefore(t, h, before)
		return o, true
	})
}

// What a container's own namespace can have against a NIC. The other NIC of the
// call comes home, too.
func TestContainerRefuses(t *testing.T) {
	for _, test := range []struct{ name, setup, config, want string }{
		{"name taken", "link add gpu1rdma0 type bridge", `{}`, `the container already has an interface called "gpu1rdma0"`},
		{"alternative name taken", "link add br0 type bridge\nlink property add dev br0 altname alt2", `{}`, "file exists"},
		{"MTU too big", "", `{"interface":{"mtu":70000}}`, "mtu greater than device maximum"},
		{"address taken", "", `{"interface":{"addresses":["10.7.7.7/24","10.7.7.7/24"]}}`, ""},
		{"gateway out of reach", "", `{"routes":[{"destination":"10.8.0.0/16","gateway":"10.99.0.1"}]}`, "add route to 10.8.0.0/16"},
		{"interface index taken", "link add br0 index 3 type bridge\nlink add br1 index 5 type bridge", `{}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, before := newHost(t)
			c := nstest.Process(t)
			inside := &rig.Host{Namespace: &c.Namespace}
			inside.Batch(t, strings.Split(test.setup, "\n")...)
			r := h.Hook(t, rig.State("c1", c.PID), append(rig.Attach(nics...), "--config", test.config)...)
			if test.want == "" {
				r.Want(t, 0)
				h.Hook(t, rig.State("c1", 0), "poststop").Want(t, 0)
			} else if r.Want(t, 1); strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(strings.ToLower(r.Stderr), strings.ToLower(test.want)) {
				t.Errorf("the hook says %q, want one line with %q", r.Stderr, test.want)
			}
			wantAsBefore(t, h, before)
		})
	}
}

// A hook that waits for one that hangs gives up with a line that names the lock.
func TestStoppedHook(t *testing.T) {
	h, before := newHost(t)
	c := nstest.Process(t)
	// While the first hook is stopped with the lock held, another must not get in.
	locked := false
	o := run(t, h, fault{}, func(int) {
		if locked {
			return
		}
		fd, err := unix.Open(hookapi.Dir+"/lock", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		locked = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
	}, rig.State("c1", c.PID), rig.Attach(nics...)...)
	o.Want(t, 0)
	if !locked {
		t.Error("the hook moves NICs without the lock")
	}
	start := time.Now()
	h.Hook(t, rig.State("c1", 0), "poststop").Want(t, 0)
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("poststop took %v after the lock's holder had ended", d)
	}
	wantAsBefore(t, h, before)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
