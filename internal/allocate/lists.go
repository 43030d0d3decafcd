package allocate

import (
	"fmt"
	"slices"
	"strings"

	"podrail/pkg/discover"
)

// SyntaxError is wrong usage: a list that could not be right on any host.
type SyntaxError struct{ Text string }

func (e *SyntaxError) Error() string { return e.Text }

// Lists is what two LISTs name: GPUs by index, UUID or PCI address; NICs by
// interface, PCI address or RDMA device; or "all", or "none". An empty list
// does not answer for its kind.
func Lists(host *discover.Host, gpus, nics string) (Answer, error) {
	var a Answer
	var how []string
	if gpus != "" {
		if err := a.listGPUs(host, gpus); err != nil {
			return Answer{}, fmt.Errorf("--gpus %s: %w", gpus, err)
		}
		how = append(how, "--gpus "+gpus)
	}
	if nics != "" {
		if err := a.listNICs(host, nics); err != nil {
			return Answer{}, fmt.Errorf("--nics %s: %w", nics, err)
		}
		how = append(how, "--nics "+nics)
	}
	a.How = strings.Join(how, " ")
	return a, nil
}

func (a *Answer) listGPUs(host *discover.Host, list string) error {
	words, err := splitList(list)
	if err != nil {
		return err
	}
	a.GPUs = true
	switch words[0] {
	case "none":
		return nil
	case "all":
		gpus, leftOut := allGPUs(host)
		a.Devices.GPUs, a.LeftOut = gpus, append(a.LeftOut, leftOut...)
		return nil
	}
	a.NamedGPUs = true
	a.Devices.GPUs, err = pickGPUs(host, words)
	return err
}

func (a *Answer) listNICs(host *discover.Host, list string) error {
	words, err := splitList(list)
	if err != nil {
		return err
	}
	a.NICs = true
	switch words[0] {
	case "none":
		return nil
	case "all":
		nics, leftOut := allNICs(host)
		a.Devices.NICs, a.LeftOut = nics, append(a.LeftOut, leftOut...)
		return nil
	}
	a.NamedNICs = true
	a.Devices.NICs, err = pickNICs(host, words)
	return err
}

// splitList refuses lists that mean nothing.
func splitList(list string) ([]string, error) {
	words := strings.Split(list, ",")
	for _, word := range words {
		switch {
		case word == "":
			return nil, &SyntaxError{"has an empty element: expected names with commas between"}
		case strings.TrimSpace(word) != word:
			return nil, &SyntaxError{fmt.Sprintf("%q has a space in it: expected names with commas between", word)}
		case strings.HasPrefix(word, "count="):
			return nil, &SyntaxError{fmt.Sprintf("%q must stand alone: count=2", word)}
		case (word == "all" || word == "none") && len(words) > 1:
			return nil, &SyntaxError{fmt.Sprintf("%q must stand alone", word)}
		}
	}
	return words, nil
}

// pickGPUs finds each GPU; the result is in the inventory's order.
func pickGPUs(host *discover.Host, words []string) ([]discover.GPU, error) {
	picked := map[int]string{}
	for _, word := range words {
		i, err := findGPU(host, word)
		if err != nil {
			return nil, err
		}
		if earlier, twice := picked[i]; twice {
			return nil, fmt.Errorf("GPU %s is there twice%s", word, asWell(earlier, word))
		}
		if why := whyNotGPU(host.GPUs[i]); why != "" {
			return nil, fmt.Errorf("GPU %s: %s", word, why)
		}
		picked[i] = word
	}
	return subset(host.GPUs, picked), nil
}

// pickNICs finds each NIC; the result is in the inventory's order.
func pickNICs(host *discover.Host, words []string) ([]discover.NIC, error) {
	picked := map[int]string{}
	for _, word := range words {
		i, err := findNIC(host, word)
		if err != nil {
			return nil, err
		}
		if earlier, twice := picked[i]; twice {
			return nil, fmt.Errorf("NIC %s is there twice%s", word, asWell(earlier, word))
		}
		if why := whyNotNIC(host.NICs[i]); why != "" {
			return nil, fmt.Errorf("NIC %s cannot be given to a container: %s", word, why)
		}
		picked[i] = word
	}
	return subset(host.NICs, picked), nil
}

func asWell(earlier, word string) string {
	if earlier == word {
		return ""
	}
	return ", as " + earlier + " too"
}

func subset[T any](all []T, picked map[int]string) []T {
	out := []T{}
	for i, d := range all {
		if _, ok := picked[i]; ok {
			out = append(out, d)
		}
	}
	return out
}

// findGPU returns a GPU's place in the inventory.
func findGPU(host *discover.Host, word string) (int, error) {
	address := pciAddress(word)
	i := slices.IndexFunc(host.GPUs, func(g discover.GPU) bool {
		// An address is a whole GPU's: several MIG devices may be at one.
		return g.Name == word || g.UUID != "" && strings.EqualFold(g.UUID, word) ||
			address != "" && g.PCIAddress == address && g.MIG == nil
	})
	if i >= 0 {
		return i, nil
	}
	for _, p := range host.Problems {
		if p.Device == word || p.Device == address {
			return -1, fmt.Errorf("GPU %s: %s", word, p.Text)
		}
	}
	return -1, fmt.Errorf("there is no GPU %q: this host has %s", word, names(host.GPUs, func(g discover.GPU) string {
		if g.Name == g.PCIAddress {
			return g.Name + " (" + g.UUID + ")"
		}
		return g.Name + " (" + g.UUID + " at " + g.PCIAddress + ")"
	}))
}

// findNIC returns a NIC's place in the inventory. Two ports of one PCI function
// can be told apart by name alone.
func findNIC(host *discover.Host, word string) (int, error) {
	address := pciAddress(word)
	var found []int
	for i, nic := range host.NICs {
		rdma := slices.ContainsFunc(nic.RDMA, func(r discover.RDMADevice) bool { return r.Name == word })
		if nic.Name == word || nic.Interface == word || rdma || address != "" && nic.PCIAddress == address {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return -1, fmt.Errorf("there is no NIC %q: this host has %s", word, names(host.NICs, nicNames))
	}
	var which []discover.NIC
	for _, i := range found {
		which = append(which, host.NICs[i])
	}
	return -1, fmt.Errorf("%q means more than one NIC: name one of %s", word, names(which, func(n discover.NIC) string { return n.Name }))
}

// nicNames is a NIC with all names by which it can be asked for.
func nicNames(nic discover.NIC) string {
	var also []string
	for _, r := range nic.RDMA {
		if r.Name != nic.Name {
			also = append(also, r.Name)
		}
	}
	if nic.PCIAddress != "" {
		also = append(also, nic.PCIAddress)
	}
	if len(also) == 0 {
		return nic.Name
	}
	return nic.Name + " (" + strings.Join(also, ", ") + ")"
}

// pciAddress is a PCI address as sysfs spells it, from any spelling in use:
// "8f:00.0", "0000:8F:00.0", nvidia-smi's "00000000:8F:00.0". It is empty for
// anything else.
func pciAddress(s string) string {
	s = strings.ToLower(s)
	parts := strings.Split(s, ":")
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if len(parts) != 3 || len(parts[1]) != 2 || len(parts[2]) != 4 || parts[2][2] != '.' {
		return ""
	}
	if strings.Trim(strings.Join(parts, ""), "0123456789abcdef.") != "" {
		return ""
	}
	domain := strings.TrimLeft(parts[0], "0")
	if len(domain) > 8 {
		return ""
	}
	for len(domain) < 4 {
		domain = "0" + domain
	}
	return domain + ":" + parts[1] + ":" + parts[2]
}
