package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// File is a file to be written.
type File struct {
	Path string
	Data []byte
	// Program is a file to be run; others are read by every engine.
	Program bool
}

// Modes let every engine read a spec, rootless ones too, and run a program.
const (
	specMode    = 0o644
	programMode = 0o755
)

// Replace writes the files and then removes the others, which may be missing,
// all in one directory, and returns those that it removed. Readers see each file
// whole, the old or the new one. If anything fails before the first file is in
// its place, nothing has changed.
func Replace(dir string, files []File, remove []string) (removed []string, err error) {
	for _, path := range append(paths(files), remove...) {
		if info, err := os.Lstat(path); err == nil && info.IsDir() {
			return nil, fmt.Errorf("%s is a directory, expected a file or nothing: remove it", path)
		}
	}
	var temps []string
	defer func() {
		for _, t := range temps {
			os.Remove(t) // gone already where the rename was reached
		}
	}()
	for _, f := range files {
		temp, err := writeTemp(f)
		if err != nil {
			return nil, fmt.Errorf("writing %s: %w", f.Path, cause(err))
		}
		temps = append(temps, temp)
	}
	for i, f := range files {
		if err := os.Rename(temps[i], f.Path); err != nil {
			return nil, err
		}
	}
	for _, path := range remove {
		err := os.Remove(path)
		switch {
		case err == nil:
			removed = append(removed, path)
		case !notExist(err):
			return removed, err
		}
	}
	return removed, syncDir(dir)
}

// writeTemp writes a file beside the one that it is to become, through to the
// disk, with its final mode: an engine that watches the directory may open it
// as soon as it has its name.
func writeTemp(f File) (name string, err error) {
	// No engine reads a name that ends so.
	temp, err := os.CreateTemp(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+".*.tmp")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.Remove(temp.Name())
		}
	}()
	mode := fs.FileMode(specMode)
	if f.Program {
		mode = programMode
	}
	_, err = temp.Write(f.Data)
	if err == nil {
		err = temp.Chmod(mode)
	}
	if err == nil {
		err = temp.Sync()
	}
	return temp.Name(), errors.Join(err, temp.Close())
}

// cause is an error without the temporary file's name.
func cause(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// syncDir makes renames and removals in a directory last. Some file systems
// (overlay on some kernels, 9p) cannot, and say EINVAL.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, fs.ErrInvalid) {
		return err
	}
	return nil
}

func paths(files []File) []string {
	var out []string
	for _, f := range files {
		out = append(out, f.Path)
	}
	return out
}
