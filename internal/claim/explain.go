package claim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// Unmet says why claims cannot be met.
type Unmet struct {
	// Where is the first claim's place, or the one's that cannot be met itself.
	Where *Error
	// Lines explain each request and constraint.
	Lines []string
}

func (e *Unmet) Error() string {
	return e.Where.Error() + "\n" + strings.Join(e.Lines, "\n")
}

// request is an exact request, or an alternative.
type request struct {
	name, class string
	all         bool
	count       int
	selectors   []resourcev1.DeviceSelector
	alternative bool
}

func (c *claim) requests() []request {
	var out []request
	for _, r := range c.Spec.Devices.Requests {
		if e := r.Exactly; e != nil {
			out = append(out, request{name: r.Name, class: e.DeviceClassName, all: e.AllocationMode == resourcev1.DeviceAllocationModeAll, count: int(e.Count), selectors: e.Selectors})
		}
		for _, s := range r.FirstAvailable {
			out = append(out, request{name: r.Name + "/" + s.Name, class: s.DeviceClassName, all: s.AllocationMode == resourcev1.DeviceAllocationModeAll,
				count: int(s.Count), selectors: s.Selectors, alternative: true})
		}
	}
	return out
}

// steps are what is left of the devices for a request, step by step.
type steps struct {
	request
	total, class int
	// selected are how many are left after each selector, expressions what each says.
	selected []int
	matching []key
	// free are the matching ones that nobody has; holders those that somebody has.
	free    []key
	holders []string
	// problem is the first error of an expression: then the rest is not known.
	problem string
}

type key = [2]string

// look evaluates a request's class and selectors on each device, in the
// allocator's order.
func (a *allocation) look(ctx context.Context, r request) steps {
	s := steps{request: r, selected: make([]int, len(r.selectors))}
	for _, slice := range a.inv.slices {
		for _, d := range slice.Spec.Devices {
			s.total++
			if !a.matches(ctx, slice.Spec.Driver, d, a.classes[r.class].Spec.Selectors, func(int) {}, &s) {
				continue
			}
			s.class++
			if !a.matches(ctx, slice.Spec.Driver, d, r.selectors, func(i int) { s.selected[i]++ }, &s) {
				continue
			}
			k := key{slice.Spec.Driver, d.Name}
			s.matching = append(s.matching, k)
			if holder := a.holders[k]; holder != "" {
				s.holders = append(s.holders, d.Name+": "+holder)
			} else {
				s.free = append(s.free, k)
			}
		}
	}
	return s
}

// matches counts a device whose expression fails as one that matches, for the
// allocator may never come to it.
func (a *allocation) matches(ctx context.Context, driver string, d resourcev1.Device, selectors []resourcev1.DeviceSelector, passed func(int), s *steps) bool {
	for i, selector := range selectors {
		result := a.cache.GetOrCompile(selector.CEL.Expression)
		if result.Error != nil {
			s.problem = result.Error.Error()
			return true
		}
		ok, _, err := result.DeviceMatches(ctx, dracel.Device{Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity})
		if err != nil && s.problem == "" {
			s.problem = fmt.Sprintf("%s: %v", d.Name, err)
		}
		if err == nil && !ok {
			return false
		}
		passed(i)
	}
	return true
}

// need is how many devices a request must have.
func (s *steps) need() int {
	if s.all {
		return max(1, len(s.matching))
	}
	return s.count
}

func (s *steps) short() bool { return len(s.free) < s.need() }

// impossible finds, without a search, what a search might take for ever to find:
// requests that have too few devices, each or together, and pairs of which too
// few fit together. It says nothing rather than too much: nil is no promise.
func (a *allocation) impossible(ctx context.Context, open []claim) *Unmet {
	var slots [][]key
	for _, c := range open {
		looked := a.lookAll(ctx, c)
		for _, s := range looked {
			if s.alternative {
				continue
			}
			if s.short() && s.problem == "" {
				return a.explain(ctx, open, "")
			}
			for range s.need() {
				slots = append(slots, s.free)
			}
		}
		if text := a.pairs(c, looked); text != "" {
			return a.explain(ctx, open, text)
		}
	}
	if !a.shares() && !enough(slots) {
		return a.explain(ctx, open, "the requests have devices enough each for itself, and too few for all of them together")
	}
	return nil
}

// shares says that a device may be given more than once.
func (a *allocation) shares() bool {
	for _, s := range a.inv.slices {
		for _, d := range s.Spec.Devices {
			if d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations {
				return true
			}
		}
	}
	return false
}

func (a *allocation) lookAll(ctx context.Context, c claim) []steps {
	var out []steps
	for _, r := range c.requests() {
		out = append(out, a.look(ctx, r))
	}
	return out
}

// enough says whether each slot can have a device of its own: a matching that
// grows by augmenting paths.
func enough(slots [][]key) bool {
	owner := map[key]int{}
	for i := range slots {
		if !augment(slots, i, owner, map[key]bool{}) {
			return false
		}
	}
	return true
}

func augment(slots [][]key, i int, owner map[key]int, seen map[key]bool) bool {
	for _, k := range slots[i] {
		if seen[k] {
			continue
		}
		seen[k] = true
		if at, taken := owner[k]; !taken || augment(slots, at, owner, seen) {
			owner[k] = i
			return true
		}
	}
	return false
}

// pairs counts sets of requests that a constraint ties together, such as eight
// pairs of a GPU and a NIC: how many of like sets the values of the attribute have
// room for. Their search is factorial.
func (a *allocation) pairs(c claim, looked []steps) string {
	byName := map[string]*steps{}
	for i := range looked {
		byName[looked[i].name] = &looked[i]
	}
	// A request in two sets of one attribute would be counted twice.
	tied := map[key]int{}
	for _, constraint := range c.Spec.Devices.Constraints {
		for _, name := range constraint.Requests {
			if constraint.MatchAttribute != nil {
				tied[key{string(*constraint.MatchAttribute), name}]++
			}
		}
	}
	type bundle struct {
		attribute string
		count     int
		members   []*steps
	}
	bundles := map[string]*bundle{}
	for _, constraint := range c.Spec.Devices.Constraints {
		if constraint.MatchAttribute == nil || len(constraint.Requests) == 0 {
			continue
		}
		b := &bundle{attribute: string(*constraint.MatchAttribute), count: 1}
		like := []string{b.attribute}
		counts := true
		for _, name := range constraint.Requests {
			s := byName[name]
			if s == nil || s.alternative || s.all || s.problem != "" || tied[key{b.attribute, name}] > 1 {
				counts = false
				break
			}
			b.members = append(b.members, s)
			like = append(like, fmt.Sprint(s.count, s.free))
		}
		if !counts {
			continue
		}
		slices.Sort(like[1:])
		id := strings.Join(like, "|")
		if bundles[id] != nil {
			bundles[id].count++
		} else {
			bundles[id] = b
		}
	}
	for _, id := range slices.Sorted(maps.Keys(bundles)) {
		b := bundles[id]
		room := 0
		for _, value := range a.values(b.attribute) {
			// Requests with the same devices need them together.
			need, have := map[string]int{}, map[string]int{}
			for _, s := range b.members {
				k := fmt.Sprint(s.free)
				need[k] += s.count
				have[k] = a.having(s.free, b.attribute, value)
			}
			fit := -1
			for k := range need {
				if n := have[k] / need[k]; fit < 0 || n < fit {
					fit = n
				}
			}
			room += fit
		}
		if room < b.count {
			var names []string
			for _, s := range b.members {
				names = append(names, fmt.Sprintf("%d %s", s.count, s.name))
			}
			return fmt.Sprintf("%d times %s with one value of %s are asked for, and there is room for %d", b.count, strings.Join(names, " and "), b.attribute, room)
		}
	}
	return ""
}

// values are all that devices have of an attribute.
func (a *allocation) values(attribute string) []string {
	seen := map[string]bool{}
	for _, s := range a.inv.slices {
		for _, d := range s.Spec.Devices {
			if v := a.value(key{s.Spec.Driver, d.Name}, attribute); v != "" {
				seen[v] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func (a *allocation) having(keys []key, attribute, value string) int {
	n := 0
	for _, k := range keys {
		if a.value(k, attribute) == value {
			n++
		}
	}
	return n
}

// value is a device's of an attribute, as text; empty if it has none. A name
// without a domain is the driver's.
func (a *allocation) value(k key, attribute string) string {
	for _, s := range a.inv.slices {
		if s.Spec.Driver != k[0] {
			continue
		}
		for _, d := range s.Spec.Devices {
			if d.Name != k[1] {
				continue
			}
			v, ok := d.Attributes[resourcev1.QualifiedName(attribute)]
			if bare, own := strings.CutPrefix(attribute, k[0]+"/"); !ok && own {
				v, ok = d.Attributes[resourcev1.QualifiedName(bare)]
			}
			switch {
			case !ok:
				return ""
			case v.StringValue != nil:
				return *v.StringValue
			case v.IntValue != nil:
				return fmt.Sprint(*v.IntValue)
			case v.BoolValue != nil:
				return fmt.Sprint(*v.BoolValue)
			case v.VersionValue != nil:
				return *v.VersionValue
			}
		}
	}
	return ""
}

// explain counts what is left of the devices, for each request and constraint.
func (a *allocation) explain(ctx context.Context, open []claim, why string) *Unmet {
	e := &Unmet{}
	for _, c := range open {
		looked := a.lookAll(ctx, c)
		e.Lines = append(e.Lines, fmt.Sprintf("claim %q:", c.Name))
		reason := ""
		for _, s := range looked {
			e.Lines = append(e.Lines, s.lines()...)
			if s.short() && !s.alternative && reason == "" {
				reason = s.reason()
			}
		}
		if name := noAlternative(looked); name != "" && reason == "" {
			reason = fmt.Sprintf("no alternative of request %q has devices enough", name)
		}
		for i, constraint := range c.Spec.Devices.Constraints {
			lines, unmet := a.constraintLines(constraint, looked)
			e.Lines = append(e.Lines, fmt.Sprintf("  constraint %d: %s", i+1, lines[0]))
			e.Lines = append(e.Lines, lines[1:]...)
			if unmet && reason == "" {
				reason = fmt.Sprintf("no value of %s has devices for all requests of constraint %d", *constraint.MatchAttribute, i+1)
			}
		}
		if reason != "" && (e.Where == nil || why == "") {
			why = reason
			e.Where = c.doc.fail(c.spec, "claim %q cannot be met: %s", c.Name, reason)
		}
	}
	if e.Where == nil {
		if why == "" {
			why = "each request and constraint can be met by itself, and not all together"
		}
		var names []string
		for _, c := range open {
			names = append(names, fmt.Sprintf("%q", c.Name))
		}
		what := "claim "
		if len(names) > 1 {
			what = "claims "
		}
		e.Where = open[0].doc.fail(open[0].spec, "%s cannot be met: %s", what+strings.Join(names, ", "), why)
	}
	return e
}

// noAlternative is a request all of whose alternatives have too few devices.
func noAlternative(looked []steps) string {
	met := map[string]bool{}
	for _, s := range looked {
		if parent, _, ok := strings.Cut(s.name, "/"); ok {
			met[parent] = met[parent] || !s.short()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(met)) {
		if !met[name] {
			return name
		}
	}
	return ""
}

func (s *steps) reason() string {
	if len(s.matching) == 0 {
		return fmt.Sprintf("no device fits request %q", s.name)
	}
	if s.all {
		return fmt.Sprintf("request %q is for all devices that fit, and %d of %d are taken", s.name, len(s.holders), len(s.matching))
	}
	if len(s.holders) > 0 {
		return fmt.Sprintf("request %q needs %d, %d fit, and %d of those are taken", s.name, s.need(), len(s.matching), len(s.holders))
	}
	return fmt.Sprintf("request %q needs %d, and %d fit", s.name, s.need(), len(s.matching))
}

// lines show what is left after each step.
func (s *steps) lines() []string {
	what := fmt.Sprintf("%d", s.count)
	if s.all {
		what = "all"
	}
	out := []string{
		fmt.Sprintf("  request %q: %s of class %s", s.name, what, s.request.class),
		fmt.Sprintf("    %4d devices on this host", s.total),
		fmt.Sprintf("    %4d of the class", s.class),
	}
	for i, n := range s.selected {
		out = append(out, fmt.Sprintf("    %4d after selector %d: %s", n, i+1, shorten(s.selectors[i].CEL.Expression)))
	}
	free := fmt.Sprintf("    %4d not taken", len(s.free))
	if len(s.holders) > 0 {
		free += fmt.Sprintf(" (taken: %s)", strings.Join(s.holders, ", "))
	}
	out = append(out, free)
	if s.problem != "" {
		out = append(out, "         an expression failed, on "+strings.Join(strings.Fields(s.problem), " "))
	}
	return out
}

// shorten makes one short line of an expression.
func shorten(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const most = 100
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + " ..."
	}
	return s
}

// constraintLines show how many devices there are for each of the constraint's
// requests with each value of its attribute, and whether none has enough.
func (a *allocation) constraintLines(c resourcev1.DeviceConstraint, looked []steps) (lines []string, unmet bool) {
	over := strings.Join(c.Requests, ", ")
	if over == "" {
		over = "all requests"
	}
	if c.MatchAttribute == nil {
		return []string{fmt.Sprintf("%s with different values of %s", over, *c.DistinctAttribute)}, false
	}
	attribute := string(*c.MatchAttribute)
	lines = []string{fmt.Sprintf("%s with one value of %s", over, attribute)}
	unmet = true
	values := a.values(attribute)
	if len(values) == 0 {
		return append(lines, "    no device has this attribute"), true
	}
	for _, value := range values {
		var parts []string
		fits := true
		for _, s := range looked {
			parent, _, _ := strings.Cut(s.name, "/")
			if len(c.Requests) > 0 && !slices.Contains(c.Requests, s.name) && !slices.Contains(c.Requests, parent) {
				continue
			}
			n := a.having(s.free, attribute, value)
			parts = append(parts, fmt.Sprintf("%d for %q", n, s.name))
			if n < s.need() && !s.alternative {
				fits = false
			}
		}
		lines = append(lines, fmt.Sprintf("    %s: %s", value, strings.Join(parts, ", ")))
		unmet = unmet && !fits
	}
	return lines, unmet
}
