package cdi

import (
	"os"
	"path/filepath"
)

// Remove removes the spec files of the given kinds and name from a directory,
// in either format, and returns those that were there.
func Remove(dir string, kinds []string, name string) ([]string, error) {
	if err := ValidateName(name); err != nil {
		return nil, err
	}
	var removed []string
	for _, kind := range kinds {
		if err := ValidateKind(kind); err != nil {
			return removed, err
		}
		for _, format := range []Format{JSON, YAML} {
			path := filepath.Join(dir, FileName(kind, name)+format.Ext())
			err := os.Remove(path)
			switch {
			case err == nil:
				removed = append(removed, path)
			case !notExist(err):
				return removed, err
			}
		}
	}
	if len(removed) == 0 {
		return nil, nil
	}
	return removed, syncDir(dir)
}
