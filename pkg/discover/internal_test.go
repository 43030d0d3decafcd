package discover

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPCIPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dir, root, function string
		bridges             []string
	}{
		{"/sys/devices/pci0000:00/0000:00:03.0/virtio2", "pci0000:00", "0000:00:03.0", nil},
		{"/sys/devices/pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:00.0/0000:23:10.0",
			"pci0000:20", "0000:23:10.0", []string{"0000:20:00.0", "0000:21:00.0", "0000:22:00.0"}},
		// Intel VMD: a domain of its own behind a function.
		{"/sys/devices/pci0000:64/0000:64:05.5/pci10000:00/10000:00:02.0/10000:01:00.0",
			"pci10000:00", "10000:01:00.0", []string{"10000:00:02.0"}},
		// Hyper-V.
		{"/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001-0000-3130-444531304244/pci0001:00/0001:00:00.0",
			"pci0001:00", "0001:00:00.0", nil},
		// A scalable function.
		{"/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/mlx5_core.sf.4", "pci0000:3a", "0000:3b:00.0", []string{"0000:3a:00.0"}},
		{"/sys/devices/netdevsim1", "", "", nil},
	} {
		root, bridges := pciPath(tt.dir)
		if function := pciFunction(tt.dir); function != tt.function {
			t.Errorf("%s: function %q, want %q", tt.dir, function, tt.function)
		}
		if tt.dir[len(tt.dir)-2] != '.' { // not a PCI function itself
			continue
		}
		if root != tt.root || !slices.Equal(bridges, tt.bridges) {
			t.Errorf("%s: %q, %q; want %q, %q", tt.dir, root, bridges, tt.root, tt.bridges)
		}
	}
}

func TestCompareNatural(t *testing.T) {
	t.Parallel()
	want := []string{"eth0", "eth01", "eth1", "eth1.5", "eth1.10", "eth2", "eth10", "eth10a2", "eth10a10", "eth18446744073709551616", "wlan0"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareNatural)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPlain: without openat2 the host's own root reads the same.
func TestPlain(t *testing.T) {
	t.Parallel()
	root, err := OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	want := readPCI(root).list()
	root.plain = true
	if diff := cmp.Diff(want, readPCI(root).list()); diff != "" {
		t.Error(diff)
	}
	if _, err := root.ReadFile("/dev/zero"); err == nil {
		t.Error("/dev/zero was read")
	}
}
