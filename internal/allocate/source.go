package allocate

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"podrail/pkg/discover"
)

// Pod is what sources look at: the container that this program runs in.
type Pod struct {
	Root *discover.Root
	Host *discover.Host
	// Environ is the container's environment, as os.Environ has it. It is empty
	// where another root is read, whose environment is not known.
	Environ []string
	// Container is the one of the pod's containers that is asked about, for a
	// source that knows them all; empty if there is no choice.
	Container string
}

// ThisPod is the one that this process is in.
func ThisPod(root *discover.Root, host *discover.Host, container string) Pod {
	p := Pod{Root: root, Host: host, Container: container}
	if root.Live() {
		p.Environ = os.Environ()
	}
	return p
}

func (p Pod) getenv(name string) string {
	for _, variable := range p.Environ {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			return value
		}
	}
	return ""
}

// Weight says how much a source's word counts.
type Weight int

const (
	// Silent: the source says nothing.
	Silent Weight = iota
	// Counts: it says how many, which is something to check others against.
	Counts
	// Names: it names devices.
	Names
	// Proves: these devices, and no others, can be used here.
	Proves
)

func (w Weight) String() string { return [...]string{"nothing", "count", "names", "proof"}[w] }

// MarshalText writes a weight as its name.
func (w Weight) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// Said is what a source says of one kind of device.
type Said struct {
	Weight Weight `json:"says"`
	// Devices are names of the inventory's, in its order.
	Devices []string `json:"devices,omitempty"`
	// Count is how many there are, those included that have names which only
	// NVML could tell.
	Count int `json:"count"`
	// How it knows, or why it does not.
	How string `json:"how"`
}

// whole says that all devices that were counted are known.
func (s Said) whole() bool { return s.Weight >= Names && len(s.Devices) == s.Count }

func (s Said) String() string {
	if s.Weight >= Names && s.whole() {
		return cmp.Or(strings.Join(s.Devices, ","), "none")
	}
	return fmt.Sprintf("%d", s.Count)
}

// Finding is what one source says.
type Finding struct {
	Source string `json:"source"`
	GPUs   Said   `json:"gpus"`
	NICs   Said   `json:"nics"`
	// Err is why the source could not be understood. Nothing is decided then.
	Err error `json:"-"`
}

// Source is one way to know what a pod was given.
type Source interface {
	// Name is what --from takes.
	Name() string
	Ask(Pod) Finding
}

// Sources are all of them, in the order in which they count.
func Sources() []Source {
	return []Source{Metadata{}, PodResources{Socket: podResourcesSocket}, Environment{}, PodInfo{}, Container{}}
}

// SourceNames are what --from takes.
func SourceNames() []string {
	var out []string
	for _, s := range Sources() {
		out = append(out, s.Name())
	}
	return out
}

// Ask asks the sources, all of them or the one that is named.
func Ask(p Pod, only string) []Finding {
	var out []Finding
	for _, s := range Sources() {
		if only != "" && s.Name() != only {
			continue
		}
		f := s.Ask(p)
		f.Source = s.Name()
		out = append(out, f)
	}
	return out
}

// Decision is which devices count, by which source.
type Decision struct {
	GPUs, NICs         Said
	GPUSource, NICFrom string
}

// Decide takes, for each kind, the first source that names devices. Another that
// names others, or counts otherwise, is an error, and so is a source that could
// not be understood: nothing is given by accident. A kind that no source names is
// not answered for; it is an error, an *ErrNone, if that is so for both.
func Decide(findings []Finding) (d Decision, err error) {
	for _, f := range findings {
		if f.Err != nil {
			return d, fmt.Errorf("source %s: %w", f.Source, f.Err)
		}
	}
	if d.GPUs, d.GPUSource, err = decide("GPU", findings, func(f Finding) Said { return f.GPUs }); err != nil {
		return d, err
	}
	if d.NICs, d.NICFrom, err = decide("NIC", findings, func(f Finding) Said { return f.NICs }); err != nil {
		return d, err
	}
	if d.GPUs.Weight == Silent && d.NICs.Weight == Silent {
		return d, &ErrNone{Tried: tried(findings)}
	}
	return d, nil
}

func decide(what string, findings []Finding, of func(Finding) Said) (winner Said, source string, err error) {
	for _, f := range findings {
		if said := of(f); said.Weight >= Names && (winner.Weight == Silent || said.whole() && !winner.whole()) {
			// One whose names cannot be resolved leaves the word to one that
			// proves as many, and is compared with it below.
			winner, source = said, f.Source
		}
	}
	for _, f := range findings {
		said := of(f)
		switch {
		case said.Weight == Silent || f.Source == source:
			continue
		case winner.Weight == Silent:
			// A count alone gives nothing.
			continue
		case said.Count != winner.Count || slices.ContainsFunc(said.Devices, func(d string) bool { return !slices.Contains(winner.Devices, d) }):
			return Said{}, "", fmt.Errorf("sources disagree about %ss: %s gives %s (%s), %s gives %s (%s): "+
				"--from SOURCE takes one source's word; a container that asks for other devices than the pod's main one sees others",
				what, source, winner, winner.How, f.Source, said, said.How)
		}
	}
	if winner.Weight != Silent && !winner.whole() {
		return Said{}, "", fmt.Errorf("source %s names %d %ss (%s), of which only %d can be told apart here, and no proof says which the others are",
			source, winner.Count, what, winner.How, len(winner.Devices))
	}
	return winner, source, nil
}

// tried says what each source looked at.
func tried(findings []Finding) []string {
	var out []string
	for _, f := range findings {
		for _, s := range []Said{f.GPUs, f.NICs} {
			if s.How != "" && !slices.Contains(out, f.Source+": "+s.How) {
				out = append(out, f.Source+": "+s.How)
			}
		}
	}
	return out
}

// Answer is a decision as the devices of a host, which must be usable here.
func (d Decision) Answer(p Pod) (Answer, error) {
	a := Answer{GPUs: d.GPUs.Weight != Silent, NICs: d.NICs.Weight != Silent, NamedGPUs: true}
	var how []string
	var err error
	if a.GPUs {
		how = append(how, fmt.Sprintf("GPUs %s from %s: %s", d.GPUs, d.GPUSource, d.GPUs.How))
		if a.Devices.GPUs, err = pickGPUs(p.Host, d.GPUs.Devices); err != nil {
			return a, fmt.Errorf("source %s: %w", d.GPUSource, err)
		}
	}
	if a.NICs {
		how = append(how, fmt.Sprintf("NICs %s from %s: %s", d.NICs, d.NICFrom, d.NICs.How))
		if a.Devices.NICs, err = pickNICs(p.Host, d.NICs.Devices); err != nil {
			return a, fmt.Errorf("source %s: %w", d.NICFrom, err)
		}
	}
	a.How = strings.Join(how, "; ")
	if len(a.Devices.GPUs)+len(a.Devices.NICs) == 0 {
		return a, fmt.Errorf("this pod has no GPU and no NIC (%s): a container sees the devices that it asks for itself, an init container, too", a.How)
	}
	if p.Root.Live() {
		err = usable(a.Devices)
	}
	return a, err
}

// usable makes sure that allocated devices can be opened here: a device is never
// dropped in silence.
func usable(given discover.Devices) error {
	for _, g := range given.GPUs {
		if len(g.Nodes) == 0 {
			return fmt.Errorf("GPU %s (%s) is allocated, but this container has no device node of it: ask for the same devices in each container", g.Name, g.UUID)
		}
		if err := openAll(g.Nodes); err != nil {
			return fmt.Errorf("GPU %s (%s) is allocated, but cannot be opened here: %w", g.Name, g.UUID, err)
		}
	}
	for _, n := range given.NICs {
		if err := openAll(rdmaNodes(n)); err != nil {
			return fmt.Errorf("NIC %s is allocated, but its RDMA device cannot be opened here: %w", n.Name, err)
		}
	}
	return nil
}

// inOrder are the names of those devices of a list for which ok holds.
func inOrder[T any](all []T, name func(T) string, ok func(int) bool) []string {
	out := []string{}
	for i, d := range all {
		if ok(i) {
			out = append(out, name(d))
		}
	}
	return out
}

func gpuName(g discover.GPU) string { return g.Name }
func nicName(n discover.NIC) string { return n.Name }

// collection gathers devices that a source names, in whatever order, each once.
type collection struct {
	gpus, nics map[int]bool
	// unknown are UUIDs of devices that are here, but which NVML alone could match.
	unknown map[string]bool
}

func newCollection() *collection {
	return &collection{map[int]bool{}, map[int]bool{}, map[string]bool{}}
}

// addGPU finds a GPU by UUID, "UUID::N" of time-slicing included.
func (c *collection) addGPU(host *discover.Host, id string) error {
	uuid, _, _ := strings.Cut(id, "::")
	i, err := findGPU(host, uuid)
	if err == nil {
		c.gpus[i] = true
		return nil
	}
	if mayBe(host, uuid) {
		c.unknown[uuid] = true
		return nil
	}
	return err
}

// mayBe says whether a UUID may be that of a device whose UUID is not known: a
// MIG device without NVML, a GPU where /proc/driver/nvidia is masked.
func mayBe(host *discover.Host, uuid string) bool {
	return slices.ContainsFunc(host.GPUs, func(g discover.GPU) bool {
		if strings.HasPrefix(uuid, "MIG-") {
			return g.MIG != nil && strings.HasPrefix(g.UUID, "MIG-GPU-")
		}
		return strings.HasPrefix(uuid, "GPU-") && g.MIG == nil && g.UUID == ""
	})
}

func (c *collection) saidGPUs(host *discover.Host, w Weight, how string) Said {
	s := Said{Weight: w, How: how, Devices: inOrder(host.GPUs, gpuName, func(i int) bool { return c.gpus[i] })}
	s.Count = len(s.Devices) + len(c.unknown)
	return s
}

func (c *collection) saidNICs(host *discover.Host, w Weight, how string) Said {
	s := Said{Weight: w, How: how, Devices: inOrder(host.NICs, nicName, func(i int) bool { return c.nics[i] })}
	s.Count = len(s.Devices)
	return s
}

func silent(format string, args ...any) Said { return Said{How: fmt.Sprintf(format, args...)} }
