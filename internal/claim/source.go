package claim

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxFile bounds an input file, in bytes: claims are a few hundred lines, and
// the slices of the largest node some hundred KiB.
const MaxFile = 4 << 20

// Error is what is wrong with an input, and where.
type Error struct {
	File string
	// Document counts the file's YAML documents from 1.
	Document int
	// Line and Column count from 1; they are 0 if not known.
	Line, Column int
	Text         string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Column > 0 {
		fmt.Fprintf(&b, ":%d", e.Column)
	}
	if e.Document > 0 {
		fmt.Fprintf(&b, ": document %d", e.Document)
	}
	return b.String() + ": " + e.Text
}

// document is one YAML document of a file.
type document struct {
	file   string
	number int
	// first is the line of the file that the text starts on.
	first int
	text  string
	// tree is for finding lines; nil where the text is no YAML.
	tree *yaml.Node
}

var separator = regexp.MustCompile(`(?m)^---(\s|$)`)

// split takes a file's documents apart; empty ones are left out.
func split(file string, data []byte) ([]document, error) {
	if len(data) > MaxFile {
		return nil, &Error{File: file, Text: fmt.Sprintf("is larger than %d MiB: it holds no claims", MaxFile>>20)}
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, &Error{File: file, Text: "is not text in UTF-8"}
	}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	starts := []int{0}
	for _, at := range separator.FindAllStringIndex(text, -1) {
		starts = append(starts, at[0])
	}
	var out []document
	for i, start := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		part := text[start:end]
		if strings.HasPrefix(part, "---") {
			part = "   " + part[3:]
		}
		if !hasContent(part) {
			continue
		}
		out = append(out, document{file: file, number: len(out) + 1, first: 1 + strings.Count(text[:start], "\n"), text: part})
	}
	if len(out) == 0 {
		return nil, &Error{File: file, Text: "is empty: expected a ResourceClaim or ResourceClaimTemplate"}
	}
	return out, nil
}

func hasContent(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && line != "..." {
			return true
		}
	}
	return false
}

var yamlLine = regexp.MustCompile(`\bline ([0-9]+)(?::| |$)`)

// fail is an error at the place of a field, as near as it can be found: the
// field itself, or else the nearest one around it.
func (d *document) fail(path []string, format string, args ...any) *Error {
	e := &Error{File: d.file, Document: d.number, Line: d.first, Text: fmt.Sprintf(format, args...)}
	if node := d.node(path); node != nil {
		e.Line, e.Column = d.first+node.Line-1, node.Column
	}
	return e
}

// failYAML is an error of a YAML parser, which has lines of its own.
func (d *document) failYAML(err error) *Error {
	e := d.fail(nil, "%s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: "))
	e.Column = 0
	if m := yamlLine.FindStringSubmatchIndex(e.Text); m != nil {
		line, _ := strconv.Atoi(e.Text[m[2]:m[3]])
		e.Line = d.first + max(line, 1) - 1
		e.Text = strings.TrimLeft(strings.Replace(e.Text, e.Text[m[0]:m[1]], "", 1), ": ")
	}
	e.Text = "is not YAML: " + strings.Join(strings.Fields(e.Text), " ")
	return e
}

// node finds a field by its path of names and indices.
func (d *document) node(path []string) *yaml.Node {
	if d.tree == nil {
		var tree yaml.Node
		if yaml.Unmarshal([]byte(d.text), &tree) != nil || len(tree.Content) == 0 {
			return nil
		}
		d.tree = tree.Content[0]
	}
	at, shown := d.tree, d.tree
	for _, name := range path {
		for at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		next := (*yaml.Node)(nil)
		switch at.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(at.Content); i += 2 {
				if at.Content[i].Value == name {
					next, shown = at.Content[i+1], at.Content[i]
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(at.Content) {
				next, shown = at.Content[i], at.Content[i]
			} else if err != nil && len(at.Content) == 1 { // a path without indices
				next = within(at.Content[0], name)
			}
		}
		if next == nil {
			return shown
		}
		at = next
	}
	if at.Kind == yaml.ScalarNode {
		return at
	}
	return shown
}

// within is a field of a mapping, or nil.
func within(mapping *yaml.Node, name string) *yaml.Node {
	for i := 0; mapping.Kind == yaml.MappingNode && i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// failInside is an error at an offset, in runes, of a text that a field has.
func (d *document) failInside(path []string, value string, offset int, format string, args ...any) *Error {
	e := d.fail(path, format, args...)
	node := d.node(path)
	if node == nil || node.Kind != yaml.ScalarNode {
		return e
	}
	if line, column, ok := d.locate(node, value, offset); ok {
		e.Line, e.Column = d.first+line-1, column
	}
	return e
}

// locate finds where in the document an offset of a scalar's value is. YAML
// folds lines and takes indentation away, so what is no white space is counted.
func (d *document) locate(node *yaml.Node, value string, offset int) (line, column int, ok bool) {
	lines := strings.Split(d.text, "\n")
	line, column = node.Line, node.Column
	switch node.Style {
	case yaml.LiteralStyle, yaml.FoldedStyle, yaml.LiteralStyle | yaml.TaggedStyle, yaml.FoldedStyle | yaml.TaggedStyle:
		line, column = line+1, 1
	case yaml.DoubleQuotedStyle, yaml.SingleQuotedStyle:
		column++
	}
	runes := []rune(value)
	offset = min(offset, len(runes))
	lastLine, lastColumn := line, column
	for i := 0; i <= offset; {
		for i < len(runes) && i < offset && unicode.IsSpace(runes[i]) {
			i++
		}
		if i == len(runes) || i == offset && unicode.IsSpace(runes[i]) {
			return lastLine, lastColumn, true
		}
		r, l, c, found := nextRune(lines, line, column)
		if !found || r != runes[i] {
			return 0, 0, false
		}
		if i == offset {
			return l, c, true
		}
		line, column = l, c+1
		lastLine, lastColumn = l, c+1
		i++
	}
	return lastLine, lastColumn, true
}

// nextRune is the next that is no white space, from a place on.
func nextRune(lines []string, line, column int) (r rune, l, c int, ok bool) {
	for ; line <= len(lines); line, column = line+1, 1 {
		runes := []rune(lines[line-1])
		for ; column <= len(runes); column++ {
			if !unicode.IsSpace(runes[column-1]) {
				return runes[column-1], line, column, true
			}
		}
	}
	return 0, 0, 0, false
}
