package cdi

import (
	_ "embed"
	"strings"
)

// wrapperScript has a line ADDED where options are to be added.
//
//go:embed wrapper.sh
var wrapperScript string

// Wrapper is a program to be called podman and to be found before the real one,
// which it becomes: what the specs give is added to each container that is run or
// created. It is for a Podman that knows no CDI.
func (p Podman) Wrapper(built []*Spec) ([]byte, error) {
	e, err := optionsOf(built, p.Name)
	if err != nil {
		return nil, err
	}
	var added []string
	for _, option := range []struct {
		name   string
		values []string
	}{{"--device", e.devices}, {"--volume", e.volumes}, {"--env", e.env}, {"--ulimit", p.Ulimits}} {
		for _, value := range option.values {
			added = append(added, shellQuote(option.name+"="+value))
		}
	}
	return []byte(strings.Replace(wrapperScript, "ADDED", strings.Join(added, " \\\n\t\t\t"), 1)), nil
}

// shellQuote makes one word for sh.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
