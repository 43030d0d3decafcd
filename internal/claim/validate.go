package claim

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// An API server sets defaults and validates before the allocator sees a claim;
// the allocator counts on that, and panics where it does not hold. The rules are
// those of Kubernetes' pkg/apis/resource, as far as they bear on allocation.

// check sets a claim's defaults and refuses what an API server would.
func (c *claim) check() error {
	devices := &c.Spec.Devices
	at := func(path ...string) []string { return append(append(slices.Clone(c.spec), "devices"), path...) }
	fail := func(path []string, format string, args ...any) error {
		return c.doc.fail(path, "claim %q: %s", c.Name, fmt.Sprintf(format, args...))
	}
	if len(devices.Requests) == 0 {
		return fail(at("requests"), "requests no devices")
	}
	if n := len(devices.Requests); n > resourcev1.DeviceRequestsMaxSize {
		return fail(at("requests"), "has %d requests: at most %d are allowed", n, resourcev1.DeviceRequestsMaxSize)
	}
	names := map[string]bool{}
	for i := range devices.Requests {
		r := &devices.Requests[i]
		path := at("requests", strconv.Itoa(i))
		if err := c.checkName(r.Name, names, append(path, "name")); err != nil {
			return err
		}
		switch {
		case r.Exactly == nil && len(r.FirstAvailable) == 0:
			return fail(path, "request %q has neither exactly nor firstAvailable: nothing says which devices", r.Name)
		case r.Exactly != nil && len(r.FirstAvailable) > 0:
			return fail(path, "request %q has both exactly and firstAvailable", r.Name)
		case r.Exactly != nil:
			e := r.Exactly
			if e.AdminAccess != nil && *e.AdminAccess {
				return fail(append(c.body(path), "adminAccess"), "request %q asks for adminAccess, which gives devices that others have: refused", r.Name)
			}
			if err := c.checkRequest(r.Name, e.DeviceClassName, &e.AllocationMode, &e.Count, e.Selectors, c.body(path)); err != nil {
				return err
			}
		}
		if n := len(r.FirstAvailable); n > resourcev1.FirstAvailableDeviceRequestMaxSize {
			return fail(append(path, "firstAvailable"), "request %q has %d alternatives: at most %d are allowed", r.Name, n, resourcev1.FirstAvailableDeviceRequestMaxSize)
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			sub := append(slices.Clone(path), "firstAvailable", strconv.Itoa(j))
			full := r.Name + "/" + s.Name
			if err := c.checkName(s.Name, map[string]bool{}, append(sub, "name")); err != nil {
				return err
			}
			if names[full] {
				return fail(append(sub, "name"), "two alternatives are called %q", full)
			}
			names[full] = true
			if err := c.checkRequest(full, s.DeviceClassName, &s.AllocationMode, &s.Count, s.Selectors, sub); err != nil {
				return err
			}
		}
	}
	if n := len(devices.Constraints); n > resourcev1.DeviceConstraintsMaxSize {
		return fail(at("constraints"), "has %d constraints: at most %d are allowed", n, resourcev1.DeviceConstraintsMaxSize)
	}
	for i, constraint := range devices.Constraints {
		if err := c.checkConstraint(constraint, names, at("constraints", strconv.Itoa(i))); err != nil {
			return err
		}
	}
	return nil
}

// body is where the fields of an exact request are: v1beta1 has no "exactly".
func (c *claim) body(request []string) []string {
	if c.version == "v1beta1" {
		return request
	}
	return append(slices.Clone(request), "exactly")
}

func (c *claim) checkName(name string, names map[string]bool, path []string) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return c.doc.fail(path, "claim %q: request name %q: must be lower case letters, digits and '-', at most 63", c.Name, name)
	}
	if names[name] {
		return c.doc.fail(path, "claim %q: two requests are called %q", c.Name, name)
	}
	names[name] = true
	return nil
}

// checkRequest sets the mode and count that an API server would, and checks them.
func (c *claim) checkRequest(name, class string, mode *resourcev1.DeviceAllocationMode, count *int64, selectors []resourcev1.DeviceSelector, path []string) error {
	fail := func(field, format string, args ...any) error {
		return c.doc.fail(append(slices.Clone(path), field), "claim %q: request %q: %s", c.Name, name, fmt.Sprintf(format, args...))
	}
	if class == "" {
		return fail("deviceClassName", "has no deviceClassName")
	}
	if *mode == "" {
		*mode = resourcev1.DeviceAllocationModeExactCount
	}
	switch *mode {
	case resourcev1.DeviceAllocationModeExactCount:
		if *count == 0 {
			*count = 1
		}
		if *count < 0 {
			return fail("count", "count %d: must be 1 or more", *count)
		}
		if *count > resourcev1.AllocationResultsMaxSize {
			return fail("count", "asks for %d devices: a claim can have %d", *count, resourcev1.AllocationResultsMaxSize)
		}
	case resourcev1.DeviceAllocationModeAll:
		if *count != 0 {
			return fail("count", "count %d: allocationMode All takes none", *count)
		}
	default:
		return fail("allocationMode", "allocationMode %q: must be ExactCount or All", *mode)
	}
	for i, s := range selectors {
		at := append(slices.Clone(path), "selectors", strconv.Itoa(i), "cel", "expression")
		if err := checkSelector(c.doc, at, fmt.Sprintf("claim %q: request %q: selector %d", c.Name, name, i+1), s); err != nil {
			return err
		}
	}
	return nil
}

func (c *claim) checkConstraint(constraint resourcev1.DeviceConstraint, names map[string]bool, path []string) error {
	fail := func(field, format string, args ...any) error {
		return c.doc.fail(append(slices.Clone(path), field), "claim %q: constraint: %s", c.Name, fmt.Sprintf(format, args...))
	}
	for _, name := range constraint.Requests {
		if !names[name] {
			return fail("requests", "there is no request %q", name)
		}
	}
	attribute, field := constraint.MatchAttribute, "matchAttribute"
	if attribute == nil {
		attribute, field = constraint.DistinctAttribute, "distinctAttribute"
	}
	if attribute == nil || constraint.MatchAttribute != nil && constraint.DistinctAttribute != nil {
		return fail("requests", "must have one of matchAttribute and distinctAttribute")
	}
	domain, id, ok := strings.Cut(string(*attribute), "/")
	if !ok || len(validation.IsDNS1123Subdomain(domain)) > 0 || len(validation.IsCIdentifier(id)) > 0 {
		return fail(field, "%s %q: must be DOMAIN/NAME, such as resource.kubernetes.io/pcieRoot", field, *attribute)
	}
	return nil
}

// check refuses a class that an API server would.
func (c *class) check() error {
	for i, s := range c.Spec.Selectors {
		at := append(slices.Clone(c.spec), "selectors", strconv.Itoa(i), "cel", "expression")
		if err := checkSelector(c.doc, at, fmt.Sprintf("class %q: selector %d", c.Name, i+1), s); err != nil {
			return err
		}
	}
	return nil
}

// features are of CEL's environment for devices.
var features = dracel.Features{EnableConsumableCapacity: true}

var celError = regexp.MustCompile(`(?s)ERROR: <input>:([0-9]+):([0-9]+): ([^\n]*)`)

// checkSelector compiles an expression as an API server does when a claim is
// made, which is stricter than for one that is stored.
func checkSelector(d *document, path []string, what string, s resourcev1.DeviceSelector) error {
	if s.CEL == nil {
		return d.fail(path[:len(path)-2], "%s: has no cel", what)
	}
	expression := s.CEL.Expression
	if len(expression) > resourcev1.CELSelectorExpressionMaxLength {
		return d.fail(path, "%s: expression of %d bytes: at most %d are allowed", what, len(expression), resourcev1.CELSelectorExpressionMaxLength)
	}
	env := environment.NewExpressions
	result := dracel.GetCompiler(features).CompileCELExpression(expression, dracel.Options{EnvType: &env})
	if result.Error != nil {
		offset, text := celPosition(expression, result.Error.Detail)
		return d.failInside(path, expression, offset, "%s: %s", what, text)
	}
	if result.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
		return d.fail(path, "%s: may cost %d times what a selector is allowed", what, result.MaxCost/resourcev1.CELSelectorExpressionMaxCost+1)
	}
	return nil
}

// celPosition takes CEL's first error, and its place as an offset in runes. CEL
// says "end of file" a place after the last line's end, white space included.
func celPosition(expression, detail string) (offset int, text string) {
	m := celError.FindStringSubmatch(detail)
	if m == nil {
		return 0, strings.Join(strings.Fields(detail), " ")
	}
	line, _ := strconv.Atoi(m[1])
	column, _ := strconv.Atoi(m[2])
	lines := strings.SplitAfter(expression, "\n")
	for i := 0; i < line-1 && i < len(lines); i++ {
		offset += utf8.RuneCountInString(lines[i])
	}
	return offset + column - 1, m[3]
}
