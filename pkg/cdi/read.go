package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	reference "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"golang.org/x/sys/unix"
)

// maxSpecFile bounds what is read of a spec file; eight GPUs and eight NICs are
// 30 KiB.
const maxSpecFile = 8 << 20

// IsSpecFile says whether engines would read a file of this name.
func IsSpecFile(name string) bool {
	ext := filepath.Ext(name)
	return ext == YAML.Ext() || ext == JSON.Ext()
}

// listSpecFiles are the files of a directory that engines would read, sorted.
// They do not look into directories below it.
func listSpecFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && IsSpecFile(e.Name()) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

// readSpecFile reads a regular file, or a link to one. A FIFO is refused, not
// waited for.
func readSpecFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is %s, not a regular file", path, info.Mode())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSpecFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSpecFile {
		return nil, fmt.Errorf("%s: is larger than %d MiB", path, maxSpecFile>>20)
	}
	return data, nil
}

// parse reads a spec as strictly as the reference library does, without
// validating it.
func parse(data []byte) (spec *specs.Spec, err error) {
	// The library's decoder sees whatever anybody wrote into the directory.
	defer func() {
		if r := recover(); r != nil {
			spec, err = nil, fmt.Errorf("cannot be decoded: %v", r)
		}
	}()
	spec, err = reference.ParseSpec(data)
	switch {
	case errors.Is(err, io.EOF), err == nil && spec == nil:
		return nil, errors.New("is empty")
	case err != nil:
		return nil, oneLine(err)
	}
	return spec, nil
}

// oneLine joins the lines of a YAML decoder's error.
func oneLine(err error) error {
	var out [][]byte
	for _, line := range bytes.Split([]byte(err.Error()), []byte("\n")) {
		out = append(out, bytes.TrimSpace(line))
	}
	return errors.New(string(bytes.Join(out, []byte(" "))))
}

// notExist says whether an error is about something that is not there.
func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
