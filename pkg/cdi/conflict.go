package cdi

import (
	"bytes"
	"path/filepath"
	"slices"
)

// Conflict is a file that defines devices of ours. Engines then know neither
// definition: the reference library drops a device that two files of one
// directory define.
type Conflict struct {
	// Path is the other's file, Kind and Devices what it defines.
	Path    string
	Kind    string
	Devices []string
}

// Conflicts finds files in a directory, other than the named ones, that define
// a device of one of the specs. A directory that is not there has none; a file
// that engines could not read either has none.
func Conflicts(dir string, specs []*Spec, own []string) ([]Conflict, error) {
	files, err := listSpecFiles(dir)
	if notExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Conflict
	for _, file := range files {
		if slices.Contains(own, filepath.Base(file)) {
			continue
		}
		data, err := readSpecFile(file)
		if err != nil {
			continue
		}
		out = append(out, conflictsIn(file, data, specs)...)
	}
	return out, nil
}

// conflictsIn parses a file only if one of the names is in it: in a directory
// with the specs of many pods that is most of the time saved.
func conflictsIn(file string, data []byte, specs []*Spec) []Conflict {
	mentioned := slices.ContainsFunc(specs, func(s *Spec) bool {
		for _, d := range s.Devices {
			if bytes.Contains(data, []byte(d.Name)) {
				return true
			}
		}
		return false
	})
	if !mentioned {
		return nil
	}
	other, err := parse(data)
	if err != nil {
		return nil
	}
	var out []Conflict
	for _, s := range specs {
		if s.Kind != other.Kind {
			continue
		}
		c := Conflict{Path: file, Kind: s.Kind}
		names := map[string]bool{}
		for _, d := range s.Devices {
			names[d.Name] = true
		}
		for _, d := range other.Devices {
			if names[d.Name] {
				c.Devices = append(c.Devices, d.Name)
			}
		}
		if len(c.Devices) > 0 {
			out = append(out, c)
		}
	}
	return out
}
