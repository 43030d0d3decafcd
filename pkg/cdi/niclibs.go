package cdi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// providers are rdma-core's names for the user-mode half of each kernel driver
// that a NIC's device is bound to; see kernel-boot/ and providers/ there.
var providers = map[string]string{
	"bnxt_en": "bnxt_re", "cxgb4": "cxgb4", "efa": "efa", "enic": "usnic_verbs", "erdma": "erdma", "hfi1": "hfi1verbs",
	"hns3": "hns", "hns_roce": "hns", "ice": "irdma", "i40e": "irdma", "idpf": "irdma", "ib_mthca": "mthca",
	"ib_qib": "ipathverbs", "ionic": "ionic", "mana": "mana", "mlx4_core": "mlx4", "mlx5_core": "mlx5",
	"ocrdma": "ocrdma", "qede": "qedr", "vmw_pvrdma": "vmw_pvrdma", "vmxnet3": "vmw_pvrdma",
}

// providerDirs are where libibverbs has its providers; in a container they go to
// where Debian's and Red Hat's libibverbs look.
var (
	providerDirs = []string{"/usr/lib/x86_64-linux-gnu/libibverbs", "/usr/lib/aarch64-linux-gnu/libibverbs",
		"/usr/lib64/libibverbs", "/usr/lib/libibverbs"}
	containerProviderDirs = []string{"/usr/lib64/libibverbs", "/usr/lib/x86_64-linux-gnu/libibverbs"}
)

// providerConfigs say which providers there are.
const providerConfigs = "/etc/libibverbs.d"

// providerNeeds are libraries that providers load and images may lack. The core,
// libibverbs, is never among them: programs were built against the image's.
var providerNeeds = []string{"libnl-3.so.200", "libnl-route-3.so.200"}

// nicLibraries are the host's provider libraries for the NICs. Each is named by
// rdma-core's private interface (libmlx5-rdmav34.so); an image whose libibverbs
// has another looks for another name and goes on without.
func nicLibraries(root *discover.Root, nics []discover.NIC) ([]*specs.Mount, error) {
	d := &driver{root: root}
	d.dirs = d.existing(libraryDirs)
	for _, name := range providersOf(nics) {
		file, base := d.provider(name)
		if file == "" {
			return nil, fmt.Errorf("--nic-libs: this host has no provider library lib%s-rdmavN.so in %s: install rdma-core's providers",
				name, strings.Join(providerDirs, ", "))
		}
		for _, dir := range containerProviderDirs {
			d.mount(file, path.Join(dir, base))
		}
		if soname := d.soname(file); strings.HasPrefix(soname, "lib"+name+".so") {
			for _, dir := range containerLibraryDirs {
				d.mount(file, path.Join(dir, soname))
			}
		}
		if file := d.first([]string{providerConfigs}, name+".driver"); file != "" {
			d.mount(file, path.Join(providerConfigs, name+".driver"))
		}
	}
	for _, name := range providerNeeds {
		if file := d.first(d.dirs, name); file != "" && len(d.mounts) > 0 {
			for _, dir := range containerLibraryDirs {
				d.mount(file, path.Join(dir, name))
			}
		}
	}
	return d.mounts, nil
}

// providersOf are the names for the NICs that have an RDMA device. A software
// device's is in its own name.
func providersOf(nics []discover.NIC) []string {
	var out []string
	for _, nic := range nics {
		for _, r := range nic.RDMA {
			name := providers[nic.Driver]
			if name == "" {
				name = strings.TrimRight(r.Name, "0123456789_")
			}
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// provider finds lib<name>-rdmav<N>.so of the highest N.
func (d *driver) provider(name string) (file, base string) {
	for _, dir := range providerDirs {
		entries, _ := d.root.ReadDir(dir)
		for _, entry := range slices.Backward(entries) {
			if !strings.HasPrefix(entry, "lib"+name+"-rdmav") || !strings.HasSuffix(entry, ".so") {
				continue
			}
			if file := d.first([]string{dir}, entry); file != "" {
				return file, entry
			}
		}
	}
	return "", ""
}

// soname is a library's, or empty.
func (d *driver) soname(file string) string {
	f, err := d.root.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	o, err := readObject(f)
	if err != nil {
		return ""
	}
	return o.soname
}
