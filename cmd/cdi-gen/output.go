package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"podrail/internal/allocate"
	"podrail/pkg/cdi"

	"github.com/urfave/cli/v2"
)

// output is where the specs go.
type output struct {
	// path is a directory, a file, or "-".
	path   string
	file   bool
	format cdi.Format
}

func parseOutput(c *cli.Context) (output, error) {
	format, err := cdi.ParseFormat(c.String("format"))
	if err != nil {
		return output{}, usagef("--%w", err)
	}
	out := output{path: c.String("output"), format: format}
	switch ext := filepath.Ext(out.path); ext {
	case ".yaml", ".json":
		out.file = true
		if c.IsSet("format") && format.Ext() != ext {
			return out, usagef("--output %s and --format %s: engines go by the file's extension; they must agree", out.path, format)
		}
		out.format = cdi.Format(ext[1:])
	case ".yml":
		return out, usagef("--output %s: engines read only files that end in .yaml or .json", out.path)
	}
	return out, nil
}

func (o output) dir() string {
	if o.file {
		return filepath.Dir(o.path)
	}
	return o.path
}

// writeSpecs makes the files of one name say what was built and nothing else.
func (p *program) writeSpecs(built *cdi.Built, answer allocate.Answer, name string, out output) error {
	specs, err := p.withoutConflicts(built, answer, name, out)
	if err != nil {
		return err
	}
	files, stale, err := out.plan(built, specs, name)
	if err != nil {
		return err
	}
	note, err := cdi.PrepareDir(out.dir())
	if err != nil {
		return fmt.Errorf("--output %s: %w", out.path, err)
	}
	if note != "" {
		p.log.Warn(note)
	}
	removed, err := cdi.Replace(out.dir(), files, stale)
	if err != nil {
		return fmt.Errorf("--output %s: %w", out.path, err)
	}
	for _, path := range removed {
		p.log.Info("removed", "file", path)
	}
	for _, f := range files {
		fmt.Fprintln(p.stdout, f.Path)
	}
	printDevices(p.stdout, specs)
	return nil
}

// plan says which files to write, and which of the same name to remove: those
// of kinds without devices, and those in the other format.
func (o output) plan(built *cdi.Built, specs []*cdi.Spec, name string) (files []cdi.File, stale []string, err error) {
	if o.file && len(specs) != 1 {
		return nil, nil, usagef("--output %s: one file holds one kind, and there are %d to write: "+
			"name a directory, or give --gpus none or --nics none", o.path, len(specs))
	}
	for _, spec := range specs {
		data, err := spec.Marshal(o.format)
		if err != nil {
			return nil, nil, err
		}
		path := o.path
		if !o.file {
			path = filepath.Join(o.path, spec.FileName+o.format.Ext())
		}
		files = append(files, cdi.File{Path: path, Data: data})
	}
	if o.file {
		return files, nil, nil
	}
	for _, base := range ownFiles(built, name) {
		path := filepath.Join(o.path, base)
		if !slices.ContainsFunc(files, func(f cdi.File) bool { return f.Path == path }) {
			stale = append(stale, path)
		}
	}
	return files, stale, nil
}

// ownFiles are the names of all files that a call with this name states.
func ownFiles(built *cdi.Built, name string) []string {
	var bases, out []string
	for _, spec := range built.Specs {
		bases = append(bases, spec.FileName)
	}
	for _, kind := range built.Absent {
		bases = append(bases, cdi.FileName(kind, name))
	}
	for _, base := range bases {
		out = append(out, base+cdi.YAML.Ext(), base+cdi.JSON.Ext())
	}
	return out
}

// withoutConflicts are the specs whose devices no file of somebody else in the
// directory defines; engines would then know neither. On most GPU hosts the
// NVIDIA toolkit has written nvidia.yaml, with all GPUs: to leave those to it is
// right unless the caller named GPUs of it.
func (p *program) withoutConflicts(built *cdi.Built, answer allocate.Answer, name string, out output) ([]*cdi.Spec, error) {
	own := ownFiles(built, name)
	if out.file {
		own = []string{filepath.Base(out.path)}
	}
	conflicts, err := cdi.Conflicts(out.dir(), built.Specs, own)
	if err != nil {
		return nil, fmt.Errorf("--output %s: %w", out.path, err)
	}
	specs := slices.Clone(built.Specs)
	for _, c := range conflicts {
		gpus := len(answer.Devices.GPUs) > 0 && c.Kind == built.Specs[0].Kind
		if !gpus || answer.NamedGPUs || len(built.Specs) == 1 {
			return nil, conflictError(c, gpus)
		}
		p.log.Warn("GPUs are left to a file that names them already", "file", c.Path, "devices", qualified(c))
		specs = slices.DeleteFunc(specs, func(s *cdi.Spec) bool { return s.Kind == c.Kind })
	}
	return specs, nil
}

func conflictError(c cdi.Conflict, gpus bool) error {
	flag := "--nic-kind"
	if gpus {
		flag = "--gpu-kind"
	}
	return fmt.Errorf("%s defines %s too, and engines drop a device that two files of one directory define: "+
		"pass --name NAME, %s VENDOR/CLASS or another --output, or remove that file", c.Path, qualified(c), flag)
}

func qualified(c cdi.Conflict) string {
	var out []string
	for _, d := range c.Devices {
		out = append(out, c.Kind+"="+d)
	}
	const most = 4
	if len(out) > most {
		out = append(out[:most-1], fmt.Sprintf("and %d more", len(c.Devices)-most+1))
	}
	return strings.Join(out, ", ")
}
