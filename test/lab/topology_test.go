package lab

import (
	"strings"
	"testing"
)

// TestTopology: the matrix of four NICs, as the kernel's sysfs of this machine's
// PCIe switches and NUMA nodes has it.
func TestTopology(t *testing.T) {
	rdma(t, "shared")
	// One below the same switch's second level, one below another root port of the
	// same host bridge, one of the other NUMA node (test/lab/topology).
	for i, pci := range []string{igbPF, "0000:27:00.0", "0000:28:00.0", "0000:83:00.0"} {
		nic := nicAt(t, pci)
		sh(t, "ip link set $1 up", nic)
		hca(t, "mlx5_"+string(rune('0'+i)), "fakeroce", nic)
	}
	got := strings.Split(sh(t, "cdi-gen topology"), "\n")
	for i, want := range []string{
		"NIC0 X PXB PHB SYS",
		"NIC1 PXB X PHB SYS",
		"NIC2 PHB PHB X SYS",
		"NIC3 SYS SYS SYS X",
	} {
		if row := strings.Join(strings.Fields(got[i+1]), " "); row != want {
			t.Errorf("row %q, want %q", row, want)
		}
	}
}
