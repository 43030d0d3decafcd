package cdi

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Format is how a spec is written.
type Format string

// The formats that engines read.
const (
	YAML Format = "yaml"
	JSON Format = "json"
)

// ParseFormat reads a format's name.
func ParseFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case YAML, JSON:
		return f, nil
	}
	return "", fmt.Errorf("format %q: must be yaml or json", s)
}

// Ext is the extension by which engines know the format; they ignore files with
// any other, ".yml" too.
func (f Format) Ext() string { return "." + string(f) }

// Marshal is the spec's text. YAML starts with "---", so that documents can
// follow one another.
func (s *Spec) Marshal(f Format) ([]byte, error) {
	var b bytes.Buffer
	if f == JSON {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		err := enc.Encode(s.Spec)
		return b.Bytes(), err
	}
	if data, ok := appendYAML([]byte("---\n"), &s.Spec); ok {
		return data, nil
	}
	b.WriteString("---\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(s.Spec); err != nil {
		return nil, err
	}
	err := enc.Close()
	return b.Bytes(), err
}
