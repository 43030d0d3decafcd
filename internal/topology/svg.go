package topology

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"podrail/pkg/discover"
)

// Owners says whose a device is: a name, or nothing for a free one. It is asked
// with one of the two.
type Owners func(gpu *discover.GPU, nic *discover.NIC) string

// WriteSVG draws the host's PCIe tree as boxes in boxes: NUMA nodes, host
// bridges, switches, and in them GPUs and NICs. How near two devices are is the
// smallest box that holds both. The colours are for light and dark pages alike.
// Only and owners may be nil; with owners each device says whose it is.
func (m *Map) WriteSVG(w io.Writer, only Only, owners Owners) error {
	p := &picture{m: m, owners: owners}
	p.build(only)
	_, err := io.WriteString(w, p.draw())
	return err
}

// Sizes of the picture, in its own units.
const (
	margin   = 20
	pad      = 10
	gap      = 10
	title    = 24
	leafH    = 44
	ownerH   = 16
	charBold = 8.2
	charThin = 6.6
)

// picture is a drawing in the making.
type picture struct {
	m      *Map
	owners Owners
	nodes  []*box
	// named are the owners that were drawn, in order of appearance.
	named []string
	gpus  []*leaf
	out   strings.Builder
}

// box is a NUMA node, a host bridge or a switch.
type box struct {
	key, class, title string
	boxes             []*box
	nics, gpus        []*leaf
	x, y, w, h        int
}

// leaf is a GPU or a NIC.
type leaf struct {
	class, name, detail, owner, tip string
	address                         string
	x, y, w                         int
}

func (p *picture) build(only Only) {
	for _, g := range p.m.host.GPUs {
		if g.Excluded || only != nil && !only(&g, nil) {
			continue
		}
		l := &leaf{
			class: "gpu", name: "GPU " + g.Name, detail: shortPCI(g.PCIAddress), address: g.PCIAddress,
			tip: fmt.Sprintf("GPU %s, %s, %s, %s", g.Name, g.Model, g.PCIAddress, g.UUID),
		}
		if p.owners != nil {
			l.owner = p.owners(&g, nil)
		}
		b := p.place(p.m.GPU(g))
		b.gpus = append(b.gpus, l)
		p.gpus = append(p.gpus, l)
	}
	for _, n := range p.m.host.NICs {
		if n.PCIRoot == "" || only != nil && !only(nil, &n) {
			continue
		}
		l := nicLeaf(n)
		if p.owners != nil {
			l.owner = cmp.Or(l.owner, p.owners(nil, &n))
		}
		b := p.place(p.m.NIC(n))
		b.nics = append(b.nics, l)
	}
	slices.SortStableFunc(p.nodes, func(a, b *box) int { return compareNames(a.key, b.key) })
}

func nicLeaf(n discover.NIC) *leaf {
	l := &leaf{class: "nic", name: n.Name, detail: shortPCI(n.PCIAddress), address: n.PCIAddress}
	var rdma []string
	for _, r := range n.RDMA {
		rdma = append(rdma, r.Name)
	}
	if len(rdma) > 0 {
		l.name, l.detail = strings.Join(rdma, ","), cmp.Or(n.Interface, l.detail)
	} else {
		l.class = "nic plain"
	}
	l.tip = strings.Join(slices.DeleteFunc([]string{n.Interface, strings.Join(rdma, ","), n.PCIAddress, n.DefaultRoute},
		func(s string) bool { return s == "" }), ", ")
	if n.DefaultRoute != "" {
		l.owner = "host"
	}
	return l
}

// place finds or makes the boxes that a device is in, and returns the innermost.
//
// The first function of a path is the root port. After it bridges come in twos, a
// switch's upstream port and a downstream port of it; what is left over is a bridge.
func (p *picture) place(at Place) *box {
	numa, text := strconv.Itoa(at.NUMANode), fmt.Sprintf("NUMA node %d", at.NUMANode)
	if at.NUMANode < 0 {
		numa, text = "~", "NUMA node unknown"
	} else if cpus := p.m.cpus(at.NUMANode); cpus != "" {
		text += " · CPUs " + cpus
	}
	b := child(&p.nodes, numa, "numa", text)
	b = child(&b.boxes, at.Root, "bridge", "host bridge "+strings.TrimPrefix(at.Root, "pci"))
	if len(at.Path) < 3 {
		return b
	}
	bridges := at.Path[1 : len(at.Path)-1]
	for i := 0; i < len(bridges); i += 2 {
		kind := "PCIe switch "
		if i+1 == len(bridges) {
			kind = "bridge "
		}
		b = child(&b.boxes, bridges[i], "switch", kind+shortPCI(bridges[i]))
	}
	return b
}

func child(boxes *[]*box, key, class, title string) *box {
	for _, b := range *boxes {
		if b.key == key {
			return b
		}
	}
	b := &box{key: key, class: class, title: title}
	*boxes = append(*boxes, b)
	return b
}

// shortPCI leaves out the domain that nearly all devices have.
func shortPCI(address string) string { return strings.TrimPrefix(address, "0000:") }

// rowHeight is a leaf's.
func (p *picture) rowHeight() int {
	if p.owners != nil {
		return leafH + ownerH
	}
	return leafH
}

// measure sets the widths and heights of a box and all in it.
func (p *picture) measure(b *box) {
	inner, height := 0, 0
	for _, c := range b.boxes {
		p.measure(c)
		inner += c.w + gap
		height = max(height, c.h)
	}
	if w, h := p.measureLeaves(b); w > 0 {
		inner += w + gap
		height = max(height, h)
	}
	b.w = max(inner-gap+2*pad, textWidth(b.title, charThin)+2*pad)
	b.h = title + height + pad
}

// measureLeaves gives all leaves of a box one width: two rows, NICs above GPUs.
func (p *picture) measureLeaves(b *box) (w, h int) {
	width := 0
	for _, l := range slices.Concat(b.nics, b.gpus) {
		width = max(width, 76, textWidth(l.name, charBold)+16, textWidth(l.detail, charThin)+16, textWidth(l.owner, charThin)+16)
	}
	for _, l := range slices.Concat(b.nics, b.gpus) {
		l.w = width
	}
	for _, row := range [][]*leaf{b.nics, b.gpus} {
		if len(row) > 0 {
			w = max(w, len(row)*(width+gap)-gap)
			h += p.rowHeight() + gap
		}
	}
	return w, max(0, h-gap)
}

// arrange sets the places of all in a box whose own place is set. What is in it
// stands on the floor, so that GPUs are as near to each other as can be.
func (p *picture) arrange(b *box) {
	x, floor := b.x+pad, b.y+b.h-pad
	for _, c := range b.boxes {
		c.x, c.y = x, floor-c.h
		p.arrange(c)
		x += c.w + gap
	}
	y := floor
	for _, row := range [][]*leaf{b.gpus, b.nics} {
		if len(row) == 0 {
			continue
		}
		y -= p.rowHeight()
		for i, l := range row {
			l.x, l.y = x+i*(l.w+gap), y
		}
		y -= gap
	}
}

func textWidth(s string, char float64) int { return int(float64(utf8.RuneCountInString(s)) * char) }

func (p *picture) draw() string {
	width, height := 0, 0
	for _, n := range p.nodes {
		p.measure(n)
		width += n.w + 2*gap
		height = max(height, n.h)
	}
	x := margin
	for _, n := range p.nodes {
		n.x, n.y, n.h = x, margin, height
		p.arrange(n)
		x += n.w + 2*gap
	}
	width = max(x-2*gap+margin, 640)
	for _, n := range p.nodes {
		p.drawBox(n)
	}
	y := p.drawNVLink(margin + height)
	y = p.drawLegend(y)
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="t">
<title id="t">PCIe topology: %s</title>
%s<rect class="page" width="%d" height="%d"/>
`, width, y, width, y, html.EscapeString(p.summary()), style, width, y)
	return head + p.out.String() + "</svg>\n"
}

func (p *picture) summary() string {
	nics := 0
	var walk func(b *box)
	walk = func(b *box) {
		nics += len(b.nics)
		for _, c := range b.boxes {
			walk(c)
		}
	}
	for _, n := range p.nodes {
		walk(n)
	}
	return fmt.Sprintf("%d GPUs, %d NICs, %d NUMA nodes", len(p.gpus), nics, len(p.nodes))
}

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.out, format, args...) }

func (p *picture) drawBox(b *box) {
	p.printf("<rect class=%q x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", b.class, b.x, b.y, b.w, b.h)
	p.printf("<text class=\"title\" x=\"%d\" y=\"%d\">%s</text>\n", b.x+pad, b.y+17, html.EscapeString(b.title))
	for _, c := range b.boxes {
		p.drawBox(c)
	}
	for _, l := range slices.Concat(b.nics, b.gpus) {
		p.drawLeaf(l)
	}
}

func (p *picture) drawLeaf(l *leaf) {
	middle := l.x + l.w/2
	p.printf("<g><title>%s</title>", html.EscapeString(l.tip))
	p.printf("<rect class=%q x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\"/>", l.class, l.x, l.y, l.w, p.rowHeight())
	p.printf("<text class=\"name\" x=\"%d\" y=\"%d\">%s</text>", middle, l.y+19, html.EscapeString(l.name))
	p.printf("<text class=\"detail\" x=\"%d\" y=\"%d\">%s</text>", middle, l.y+35, html.EscapeString(l.detail))
	if p.owners != nil {
		p.drawOwner(l)
	}
	p.printf("</g>\n")
}

// drawOwner writes whose a device is on a strip at its foot.
func (p *picture) drawOwner(l *leaf) {
	class, text := "free", "free"
	if l.owner == "host" {
		class, text = "host", "host"
	} else if l.owner != "" {
		i := slices.Index(p.named, l.owner)
		if i < 0 {
			i = len(p.named)
			p.named = append(p.named, l.owner)
		}
		class, text = fmt.Sprintf("o%d", i%colours), l.owner
	}
	y := l.y + leafH - 2
	p.printf("<rect class=\"own %s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\"/>", class, l.x+3, y, l.w-6, ownerH)
	p.printf("<text class=\"owner t-%s\" x=\"%d\" y=\"%d\">%s</text>", class, l.x+l.w/2, y+12, html.EscapeString(text))
}

// drawNVLink draws a bar for each set of GPUs that NVLinks connect, and returns
// where the next thing can be.
func (p *picture) drawNVLink(y int) int {
	for _, set := range p.linked() {
		least, most := 0, 0
		for i, a := range set {
			for _, b := range set[i+1:] {
				n := p.m.links.Count(a.address, b.address)
				if least == 0 || n < least {
					least = n
				}
				most = max(most, n)
			}
		}
		first, last := set[0], set[len(set)-1]
		from, to := first.x, last.x+last.w
		text := fmt.Sprintf("NVLink: %d links", most)
		if least != most {
			text = fmt.Sprintf("NVLink: %d to %d links", least, most)
		}
		if long := text + " between each two of these GPUs"; textWidth(long, charThin) < to-from {
			text = long
		}
		y += 18
		for _, l := range set {
			p.printf("<path class=\"link\" d=\"M%d %dV%d\"/>\n", l.x+l.w/2, l.y+p.rowHeight(), y)
		}
		p.printf("<rect class=\"nvlink\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"22\" rx=\"4\"/>\n", from, y, to-from)
		p.printf("<text class=\"nvtext\" x=\"%d\" y=\"%d\">%s</text>\n", (from+to)/2, y+15, text)
		y += 22
	}
	return y
}

// linked are the sets of GPUs that NVLinks connect, each from left to right.
func (p *picture) linked() [][]*leaf {
	var sets [][]*leaf
	left := slices.Clone(p.gpus)
	slices.SortStableFunc(left, func(a, b *leaf) int { return a.x - b.x })
	for len(left) > 0 {
		set := []*leaf{left[0]}
		left = left[1:]
		for i := 0; i < len(set); i++ {
			left = slices.DeleteFunc(left, func(l *leaf) bool {
				near := p.m.links.Count(set[i].address, l.address) > 0
				if near {
					set = append(set, l)
				}
				return near
			})
		}
		if len(set) > 1 {
			slices.SortStableFunc(set, func(a, b *leaf) int { return a.x - b.x })
			sets = append(sets, set)
		}
	}
	return sets
}

// drawLegend says how boxes read as relations, and returns the picture's height.
func (p *picture) drawLegend(y int) int {
	lines := []string{
		"Two devices are as near as the smallest box that holds both:",
		"same switch PIX · through a switch inside it PXB · same host bridge PHB · same NUMA node NODE · otherwise SYS",
	}
	y += 10
	for _, line := range lines {
		y += 16
		p.printf("<text class=\"legend\" x=\"%d\" y=\"%d\">%s</text>\n", margin, y, line)
	}
	return y + margin
}

// colours is how many there are for owners; more use them again, and
// their names tell them apart.
const colours = 6

// style has the colours: first those for light pages, then those for dark ones.
const style = `<style>
text { font-family: system-ui, "DejaVu Sans", "Liberation Sans", sans-serif; fill: #1c2430; }
.page { fill: #ffffff; }
.title { font-size: 12px; } .legend { font-size: 12px; fill: #56606e; }
.name { font-size: 14px; font-weight: 600; text-anchor: middle; }
.detail { font-size: 11px; text-anchor: middle; }
.owner { font-size: 11px; text-anchor: middle; }
.nvtext { font-size: 12px; text-anchor: middle; fill: #ffffff; }
.numa { fill: #eef1f5; stroke: #aab4c1; }
.bridge { fill: #e0e6ed; stroke: #aab4c1; }
.switch { fill: #d0d9e4; stroke: #8c99aa; }
.gpu { fill: #c8e6b4; stroke: #4c8527; }
.nic { fill: #bfdcf7; stroke: #2a6fb0; }
.plain { fill: #f7f9fb; stroke: #8c99aa; }
.nvlink { fill: #4c8527; } .link { stroke: #4c8527; stroke-width: 2; fill: none; }
.free { fill: #ffffff; stroke: #aab4c1; } .host { fill: #56606e; }
.t-host, .t-o0, .t-o1, .t-o2, .t-o3, .t-o4, .t-o5 { fill: #ffffff; }
.o0 { fill: #7a3e9d; } .o1 { fill: #b3452c; } .o2 { fill: #1f6f6b; } .o3 { fill: #8a5a00; } .o4 { fill: #b0307a; } .o5 { fill: #3550a8; }
@media (prefers-color-scheme: dark) {
text { fill: #e6eaf0; }
.page { fill: #14181e; }
.legend { fill: #a3adba; }
.numa { fill: #1d232b; stroke: #47525f; }
.bridge { fill: #262e38; stroke: #47525f; }
.switch { fill: #313b47; stroke: #65717f; }
.gpu { fill: #2f5419; stroke: #7fbf52; }
.nic { fill: #17436c; stroke: #62a8e6; }
.plain { fill: #262e38; stroke: #65717f; }
.free { fill: #14181e; stroke: #65717f; } .host { fill: #8b96a5; } .t-host { fill: #14181e; }
}
</style>
`
