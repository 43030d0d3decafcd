package allocate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"podrail/pkg/discover"
)

// MaxFile bounds an allocation file, in bytes. The whole inventory of a host with
// eight GPUs is 100 KiB.
const MaxFile = 4 << 20

// File reads an allocation: JSON in the form that `cdi-gen list -o json` writes,
// or as little of it as tells the devices apart. A GPU has a uuid, a pciAddress
// or a name, a NIC a name or a pciAddress:
//
//	{"gpus": [{"uuid": "GPU-..."}, {"pciAddress": "0000:90:00.0"}],
//	 "nics": [{"name": "gpu0rdma0"}]}
//
// A device that has several of these must match all of them. Other fields of
// the inventory may be there and are not looked at; unknown ones are refused.
// A file answers for both kinds: a kind that it does not have is none.
func File(host *discover.Host, r io.Reader, name string) (Answer, error) {
	a, err := readFile(host, r)
	if err != nil {
		return Answer{}, fmt.Errorf("allocation %s: %w", name, err)
	}
	a.How = "--allocation " + name
	return a, nil
}

func readFile(host *discover.Host, r io.Reader) (Answer, error) {
	listed, err := decode(r)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{GPUs: true, NICs: true, NamedGPUs: true, NamedNICs: true}
	var words []string
	for i, gpu := range listed.GPUs {
		word, err := matchGPU(host, gpu)
		if err != nil {
			return a, fmt.Errorf("gpus[%d]: %w", i, err)
		}
		words = append(words, word)
	}
	if a.Devices.GPUs, err = pickGPUs(host, words); err != nil {
		return a, err
	}
	words = nil
	for i, nic := range listed.NICs {
		word, err := matchNIC(host, nic)
		if err != nil {
			return a, fmt.Errorf("nics[%d]: %w", i, err)
		}
		words = append(words, word)
	}
	a.Devices.NICs, err = pickNICs(host, words)
	return a, err
}

// ReadDevices reads the devices of an allocation as they are written, whatever
// host they are of.
func ReadDevices(r io.Reader) (discover.Devices, error) {
	listed, err := decode(r)
	if err != nil {
		return discover.Devices{}, err
	}
	return listed.Devices, nil
}

// decode reads one JSON object and nothing after it.
func decode(r io.Reader) (*discover.Host, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFile {
		return nil, fmt.Errorf("is larger than %d MiB", MaxFile>>20)
	}
	if first := bytes.TrimSpace(data); len(first) == 0 || first[0] != '{' {
		return nil, errors.New(`is not a JSON object such as {"gpus":[{"uuid":"GPU-..."}],"nics":[{"name":"gpu0rdma0"}]}`)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var listed discover.Host
	if err := dec.Decode(&listed); err != nil {
		return nil, fmt.Errorf("is not an allocation: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("has more after its JSON object")
	}
	return &listed, nil
}

// matchGPU returns a word for the GPU, all of whose names lead to the same one.
func matchGPU(host *discover.Host, gpu discover.GPU) (string, error) {
	return match("GPU", []string{gpu.UUID, gpu.PCIAddress, gpu.Name}, func(word string) (int, error) {
		return findGPU(host, word)
	})
}

func matchNIC(host *discover.Host, nic discover.NIC) (string, error) {
	return match("NIC", []string{nic.Name, nic.PCIAddress}, func(word string) (int, error) {
		if word == nic.PCIAddress && nic.Name != "" {
			// A second port has the same address: the name decides.
			i, err := findNIC(host, nic.Name)
			if err == nil && host.NICs[i].PCIAddress == pciAddress(word) {
				return i, nil
			}
		}
		return findNIC(host, word)
	})
}

func match(what string, words []string, find func(string) (int, error)) (string, error) {
	word, place := "", -1
	for _, w := range words {
		if w == "" {
			continue
		}
		i, err := find(w)
		if err != nil {
			return "", err
		}
		if place >= 0 && i != place {
			return "", fmt.Errorf("%q and %q are two different %ss of this host", word, w, what)
		}
		if place < 0 {
			word, place = w, i
		}
	}
	if place < 0 {
		return "", errors.New("has no uuid, pciAddress or name")
	}
	return word, nil
}
