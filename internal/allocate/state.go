package allocate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"podrail/pkg/discover"

	"golang.org/x/sys/unix"
)

// StateDir holds what is taken on a host: NAME.json for each --name, an
// allocation in the form that File reads. It is gone after a boot, as the specs
// below /run are.
const StateDir = "/run/cdi-gen/allocations"

// lockFile is locked by whoever changes StateDir, from the look at what is taken
// until the specs are written.
const lockFile = "/run/cdi-gen/lock"

// lockWait bounds the wait for another call, which takes milliseconds.
const lockWait = 10 * time.Second

// Taken is what is taken on a host, by name.
type Taken map[string]discover.Devices

// ReadTaken reads what is taken on the host below root. A file that cannot be
// read is an error: what is in it must not be given again.
func ReadTaken(root *discover.Root) (Taken, error) {
	entries, err := root.ReadDir(StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return Taken{}, nil
	}
	if err != nil {
		return nil, err
	}
	taken := Taken{}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry, ".json")
		if !ok || strings.HasPrefix(entry, ".") {
			continue
		}
		data, err := root.ReadFile(path.Join(StateDir, entry))
		if errors.Is(err, fs.ErrNotExist) { // freed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		listed, err := decode(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("%s %w", path.Join(StateDir, entry), err)
		}
		taken[name] = listed.Devices
	}
	return taken, nil
}

// GPU is the name that holds a GPU, or nothing. A GPU and its MIG devices
// exclude each other.
func (t Taken) GPU(g discover.GPU) string {
	return t.find(func(d discover.Devices) bool {
		return slices.ContainsFunc(d.GPUs, func(held discover.GPU) bool { return sameGPU(held, g) })
	})
}

// NIC is the name that holds a NIC, or nothing.
func (t Taken) NIC(n discover.NIC) string {
	return t.find(func(d discover.Devices) bool {
		return slices.ContainsFunc(d.NICs, func(held discover.NIC) bool { return sameNIC(held, n) })
	})
}

func (t Taken) find(holds func(discover.Devices) bool) string {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if holds(t[name]) {
			return name
		}
	}
	return ""
}

// Without is what others than a name hold.
func (t Taken) Without(name string) Taken {
	others := maps.Clone(t)
	delete(others, name)
	return others
}

func sameGPU(a, b discover.GPU) bool {
	switch {
	case a.MIG != nil && b.MIG != nil:
		return a.MIG.Parent == b.MIG.Parent && a.MIG.GI == b.MIG.GI && a.MIG.CI == b.MIG.CI
	case a.MIG != nil:
		return a.MIG.Parent == b.UUID
	case b.MIG != nil:
		return b.MIG.Parent == a.UUID
	case a.UUID != "" && b.UUID != "":
		return strings.EqualFold(a.UUID, b.UUID)
	case a.PCIAddress != "" && b.PCIAddress != "":
		return a.PCIAddress == b.PCIAddress
	}
	return a.Name == b.Name
}

// sameNIC goes by identity. While a NIC is in a container, this host has but its
// RDMA device, which has the NIC's address and may lack its port.
func sameNIC(a, b discover.NIC) bool {
	if a.Identity != "" && a.Identity == b.Identity {
		return true
	}
	gone := a.Interface == "" || b.Interface == ""
	if a.PCIAddress != "" && b.PCIAddress != "" {
		return a.PCIAddress == b.PCIAddress && (gone || a.Identity == "" || b.Identity == "")
	}
	return (a.Identity == "" || b.Identity == "") && a.Name == b.Name
}

// TakenError says that devices are another name's.
type TakenError struct {
	// Devices name each device and its holder: "GPU 0 (job1)".
	Devices []string
}

func (e *TakenError) Error() string {
	return "already taken: " + strings.Join(e.Devices, ", ") +
		"; give other devices, or free them with cdi-gen remove --name NAME when their containers have ended"
}

// Check returns a *TakenError if any of the devices is taken.
func (t Taken) Check(d discover.Devices) error {
	var out []string
	for _, g := range d.GPUs {
		if holder := t.GPU(g); holder != "" {
			out = append(out, fmt.Sprintf("GPU %s (%s)", g.Name, holder))
		}
	}
	for _, n := range d.NICs {
		if holder := t.NIC(n); holder != "" {
			out = append(out, fmt.Sprintf("NIC %s (%s)", n.Name, holder))
		}
	}
	if len(out) > 0 {
		return &TakenError{out}
	}
	return nil
}

// Free are the devices of a host that can be given and nobody holds.
func Free(host *discover.Host, taken Taken) discover.Devices {
	gpus, _ := allGPUs(host)
	nics, _ := allNICs(host)
	return discover.Devices{
		GPUs: slices.DeleteFunc(slices.Clone(gpus), func(g discover.GPU) bool { return taken.GPU(g) != "" }),
		NICs: slices.DeleteFunc(slices.Clone(nics), func(n discover.NIC) bool { return taken.NIC(n) != "" || Elsewhere(n) }),
	}
}

// Elsewhere says that a NIC's interface is in another network namespace: an
// Ethernet RDMA device always has one.
func Elsewhere(n discover.NIC) bool {
	return n.Interface == "" && len(n.RDMA) > 0 && slices.ContainsFunc(n.RDMA[0].Ports, func(p discover.RDMAPort) bool {
		return p.LinkLayer == "Ethernet"
	})
}

// State is the right to change what is taken on this host.
type State struct {
	root *discover.Root
	dir  string
	lock *os.File
}

// LockState waits for other calls and keeps new ones waiting until Close. The
// root must be this host's own. An error that is fs.ErrPermission, or EROFS, says
// that there is no state here: this is no root of a host's.
func LockState(root *discover.Root) (*State, error) {
	return lockState(root, StateDir, lockFile)
}

func lockState(root *discover.Root, dir, file string) (*State, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(lockWait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return &State{root, dir, f}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("lock %s, which another cdi-gen holds: %w", file, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Taken is what is taken now.
func (s *State) Taken() (Taken, error) { return ReadTaken(s.root) }

// Record makes a name hold these devices, and no others that it held. Undo makes
// it hold again what it held.
func (s *State) Record(name string, d discover.Devices) (undo func() error, err error) {
	file := filepath.Join(s.dir, name+".json")
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	held := err == nil
	undo = func() error {
		if held {
			return s.write(file, before)
		}
		_, err := s.Free(name)
		return err
	}
	if len(d.GPUs)+len(d.NICs) == 0 {
		_, err := s.Free(name)
		return undo, err
	}
	data, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, err
	}
	return undo, s.write(file, append(data, '\n'))
}

// Free makes a name hold nothing, and says whether it held something.
func (s *State) Free(name string) (bool, error) {
	err := os.Remove(filepath.Join(s.dir, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// write writes a file whole or not at all.
func (s *State) write(file string, data []byte) error {
	f, err := os.CreateTemp(s.dir, ".tmp-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// Close lets others change what is taken.
func (s *State) Close() error { return s.lock.Close() }
