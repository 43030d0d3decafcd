package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"podrail/internal/nstest"
	"podrail/test/rig"
)

// round is what the workers of one round share.
type round struct {
	t    testing.TB
	host *rig.Host

	mu    sync.Mutex
	log   []string
	count map[string]int
}

// worker is one engine: it starts containers, and calls hooks for them.
type worker struct {
	*round
	id         int
	rand       *rand.Rand
	made       int
	containers []*container
}

// container is a process, in a network namespace of its own or another's.
type container struct {
	id string
	*nstest.Child
}

// run lets all workers take their steps, and then ends all containers.
func (r *round) run(seed uint64) {
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the last steps:\n%s", strings.Join(r.log[max(0, len(r.log)-100):], "\n"))
		}
	}()
	var wg sync.WaitGroup
	for id := range workers {
		wg.Go(func() {
			w := &worker{round: r, id: id, rand: rand.New(rand.NewPCG(seed, uint64(id)))}
			for range stepsPerRound {
				if !r.t.Failed() {
					w.step()
				}
			}
			w.end()
		})
	}
	wg.Wait()
	r.hook("", "reconcile").want(0)
}

// steps are what a worker can do, with how often it does.
var steps = []struct {
	name   string
	weight int
	do     func(*worker)
}{
	{"start a container", 8, (*worker).startContainer},
	{"second container", 3, (*worker).secondContainer},
	{"attach", 12, (*worker).attach},
	{"attach, killed", 5, (*worker).attachKilled},
	{"workload", 10, (*worker).workload},
	{"poststop", 5, (*worker).poststop},
	{"poststop, killed", 3, (*worker).poststopKilled},
	{"kill", 5, (*worker).kill},
	{"restart", 3, (*worker).restart},
	{"reconcile", 3, (*worker).reconcile},
	{"reconcile, killed", 2, (*worker).reconcileKilled},
	{"return", 2, (*worker).giveBack},
	{"status", 2, (*worker).status},
}

func (w *worker) step() {
	sum := 0
	for _, s := range steps {
		sum += s.weight
	}
	n := w.rand.IntN(sum)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			w.mu.Lock()
			w.count[s.name]++
			w.mu.Unlock()
			s.do(w)
			return
		}
	}
}

func (w *worker) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%s worker %d: ", time.Now().Format("05.000"), w.id)+fmt.Sprintf(format, args...))
}

func (w *worker) startContainer() {
	if len(w.containers) == 4 {
		w.kill()
	}
	w.add(nstest.Process(w.t))
}

func (w *worker) secondContainer() {
	if c := w.any(); c != nil && len(w.containers) < 5 {
		w.add(c.Process(w.t))
	}
}

func (w *worker) add(p *nstest.Child) *container {
	w.made++
	c := &container{fmt.Sprintf("w%d-%d", w.id, w.made), p}
	w.containers = append(w.containers, c)
	w.note("container %s is process %d", c.id, c.PID)
	return c
}

func (w *worker) any() *container {
	if len(w.containers) == 0 {
		return nil
	}
	return w.containers[w.rand.IntN(len(w.containers))]
}

func (w *worker) someNICs() []string {
	some := slices.Clone(nics)
	w.rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	return some[:1+w.rand.IntN(3)]
}

// refusals are what a createRuntime of one worker may be told because of what
// the others, or its workloads, are doing.
var refusals = []string{
	"is held by container", "the container already has an interface called", "a workload moved it on",
	"File exists", "file exists", "Attribute failed policy validation",
}

func (w *worker) attach() {
	c := w.any()
	if c == nil {
		return
	}
	chosen := w.someNICs()
	res := w.hook(rig.State(c.id, c.PID), rig.Attach(chosen...)...)
	w.note("attach %v to %s: %d %s", chosen, c.id, res.Status, res.Stderr)
	if res.want(0, 1); res.Status == 1 {
		if !slices.ContainsFunc(refusals, func(s string) bool { return strings.Contains(res.Stderr, s) }) {
			w.t.Errorf("createRuntime fails: %s", res.Stderr)
		}
		w.died(c)
	}
}

// died is what a runtime does with a container whose hook failed: crun runs no
// poststop for it, runc does.
func (w *worker) died(c *container) {
	switch w.rand.IntN(3) {
	case 0:
		w.remove(c)
	case 1:
		w.hook(rig.State(c.id, 0), "poststop").want(0)
		w.remove(c)
	case 2:
		w.remove(c)
		w.hook(rig.State(c.id, 0), "poststop").want(0)
	}
}

func (w *worker) attachKilled() {
	if c := w.any(); c != nil {
		chosen := w.someNICs()
		w.note("attach %v to %s, killed", chosen, c.id)
		w.killed(rig.State(c.id, c.PID), rig.Attach(chosen...)...)
		w.died(c)
	}
}

// killed calls the hook and kills it after a while.
func (w *worker) killed(stdin string, args ...string) {
	cmd := exec.Command(rig.Program(w.t), args...)
	cmd.Stdin = strings.NewReader(stdin)
	after := time.Duration(w.rand.IntN(150)) * time.Millisecond
	w.host.Do(w.t, func() {
		if err := cmd.Start(); err != nil {
			w.t.Error(err)
			return
		}
		timer := time.AfterFunc(after, func() { cmd.Process.Kill() })
		defer timer.Stop()
		cmd.Wait() // it was killed, or was quicker
	})
}

func (w *worker) poststop() {
	c := w.any()
	if c == nil {
		return
	}
	for range 1 + w.rand.IntN(2) {
		res := w.hook(rig.State(c.id, 0), "poststop")
		w.note("poststop %s: %d %s", c.id, res.Status, res.Stderr)
		res.want(0)
	}
	if w.rand.IntN(2) == 0 {
		w.remove(c)
	}
}

func (w *worker) poststopKilled() {
	if c := w.any(); c != nil {
		w.note("poststop %s, killed", c.id)
		w.killed(rig.State(c.id, 0), "poststop")
		w.remove(c)
	}
}

func (w *worker) kill() {
	if c := w.any(); c != nil {
		w.remove(c)
	}
}

func (w *worker) remove(c *container) {
	c.Kill(w.t)
	w.containers = slices.DeleteFunc(w.containers, func(other *container) bool { return other == c })
	w.note("%s is dead", c.id)
}

// restart is a container of the same id in a new namespace.
func (w *worker) restart() {
	if old := w.any(); old != nil {
		w.remove(old)
		w.add(nstest.Process(w.t)).id = old.id
		w.note("%s is the restarted one", old.id)
	}
}

func (w *worker) reconcile() {
	res := w.hook("", "reconcile")
	w.note("reconcile: %d %s", res.Status, res.Stderr)
	res.want(0)
}

func (w *worker) reconcileKilled() {
	w.note("reconcile, killed")
	w.killed("", "reconcile")
}

func (w *worker) giveBack() {
	args := []string{"return", nics[w.rand.IntN(len(nics))]}
	if w.rand.IntN(3) == 0 {
		args = append(args, "--force")
	}
	res := w.hook("", args...)
	w.note("%v: %d %s", args, res.Status, res.Stderr)
	if res.want(0, 1); res.Status == 1 && !strings.Contains(res.Stderr, "is held by") && !strings.Contains(res.Stderr, "is not away from home") {
		w.t.Errorf("%v fails: %s", args, res.Stderr)
	}
}

func (w *worker) status() {
	res := w.hook("", "status", "-o", "json")
	res.want(0)
	var report struct{ Problems []string }
	if err := json.Unmarshal([]byte(res.Stdout), &report); err != nil || len(report.Problems) > 0 {
		w.t.Errorf("status: %v: %s", err, res.Stdout)
	}
}

// changes are what workloads do to an interface of theirs, X. Some fail.
var changes = []string{
	"ip link set X down", "ip link set X up", "ip link set X mtu 1400", "ip link set X address 02:11:22:33:44:55",
	"ip addr flush dev X", "ip addr add 1.2.3.4/8 dev X", "ip -6 addr add fd99::1/64 dev X", "ip route add 9.0.0.0/8 dev X", "ip route flush dev X",
	"ip link set X alias mine", "ip link set X promisc on", "ip link set X txqueuelen 5", "ip link property add dev X altname lo2",
	"ip link property add dev X altname gpu7rdma0", "ip link set X name eth7", "ip link set X name --root=x", "ip link set X name gpu5rdma0",
	"ip link add br0 type bridge", "ip link set X master br0", "ip link add mv0 link X type macvlan", "tc qdisc add dev X root pfifo limit 7",
	"ip neigh add 1.2.3.5 lladdr 02:00:00:00:00:09 dev X", "ip rule add from 1.2.3.4 lookup 9",
}

func (w *worker) workload() {
	c := w.any()
	if c == nil {
		return
	}
	enter := []string{"--net=" + c.Path, "--"}
	out, err := exec.Command("nsenter", append(enter, "ls", "/proc/sys/net/ipv4/conf")...).Output()
	if err != nil {
		w.t.Error(err)
		return
	}
	links := slices.DeleteFunc(strings.Fields(string(out)), func(s string) bool { return s == "lo" || s == "all" || s == "default" })
	if len(links) == 0 {
		return
	}
	for range 1 + w.rand.IntN(4) {
		change := strings.Fields(changes[w.rand.IntN(len(changes))])
		for i, word := range change {
			if word == "X" {
				change[i] = links[w.rand.IntN(len(links))]
			}
		}
		err := exec.Command("nsenter", append(enter, change...)...).Run()
		w.note("in %s: %v: %v", c.id, change, err)
	}
}

// end ends the worker's containers, each in its own way.
func (w *worker) end() {
	for len(w.containers) > 0 {
		c := w.any()
		if w.rand.IntN(2) == 0 {
			w.hook(rig.State(c.id, 0), "poststop").want(0)
		}
		w.remove(c)
	}
}

// result is a call of the hook.
type result struct {
	rig.Result
	round *round
	args  []string
}

func (r *round) hook(stdin string, args ...string) result {
	cmd := exec.Command(rig.Program(r.t), args...)
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	var err error
	r.host.Do(r.t, func() { err = cmd.Run() })
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.t.Error(err)
		return result{rig.Result{Status: -1, Stderr: err.Error()}, r, args}
	}
	return result{rig.Result{Status: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}, r, args}
}

// want reports another exit status than those wanted, and more than one line
// about a failure.
func (r result) want(status ...int) {
	if !slices.Contains(status, r.Status) {
		r.round.t.Errorf("netdev-hook %v: exit status %d: %s", r.args, r.Status, r.Stderr)
	}
	if r.Status == 1 && strings.Count(r.Stderr, "\n") != 1 {
		r.round.t.Errorf("netdev-hook %v: more than a line: %s", r.args, r.Stderr)
	}
}
