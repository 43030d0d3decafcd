package allocate

import (
	"fmt"

	"podrail/pkg/discover"
)

// Named finds devices by any name that a GPU or a NIC has, those included that
// cannot be given away. A device that is named twice is there once.
func Named(host *discover.Host, words []string) (discover.Devices, error) {
	gpus, nics := map[int]string{}, map[int]string{}
	for _, word := range words {
		if i, err := findGPU(host, word); err == nil {
			gpus[i] = word
			continue
		}
		i, err := findNIC(host, word)
		if err != nil {
			return discover.Devices{}, fmt.Errorf("there is no GPU and no NIC %q: this host has GPUs %s; NICs %s", word,
				names(host.GPUs, func(g discover.GPU) string { return g.Name }), names(host.NICs, func(n discover.NIC) string { return n.Name }))
		}
		nics[i] = word
	}
	return discover.Devices{GPUs: subset(host.GPUs, gpus), NICs: subset(host.NICs, nics)}, nil
}
