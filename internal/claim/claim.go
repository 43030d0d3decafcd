// Package claim evaluates Kubernetes' claims for devices (DRA: DeviceClass,
// ResourceClaim, ResourceClaimTemplate of resource.k8s.io) where there is no
// Kubernetes: against the devices of one host, with the scheduler's own
// allocator, so that an expression means here what it means there.
//
//	inventory := claim.Host(host, "node-1")
//	result, err := claim.Allocate(ctx, inventory, taken, []claim.File{{Name: "claim.yaml", Data: data}})
//	for _, r := range result.Requests {
//		fmt.Println(r.Claim, r.Request, r.Device.Name)
//	}
//
// What an API server does before the scheduler, and a person reads after it, is
// done here: strict decoding of all versions, defaults, validation, and why a
// claim cannot be met.
package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"podrail/internal/resourceslice"
	"podrail/pkg/discover"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// SearchTime bounds the search for an allocation. Most take a few milliseconds;
// what cannot be met can take for ever.
const SearchTime = 5 * time.Second

// File is an input.
type File struct {
	Name string
	Data []byte
}

// Device is a device of the inventory.
type Device struct {
	Driver, Name string
	// UUID is a GPU's. Interface is a NIC's; empty for an RDMA device without one.
	UUID, Interface string
	PCIAddress      string
	// GPU or NIC is the device in the host's inventory; nil if slices were given.
	GPU *discover.GPU
	NIC *discover.NIC
}

// Result is what claims were given, in the order of claims and their requests.
type Result struct {
	Requests []Given
	// Notes are about claims for which there was nothing to do.
	Notes []string
}

// Given is a device for a request of a claim.
type Given struct {
	Claim, Request string
	Device         Device
}

// Inventory are a node's devices as claims see them.
type Inventory struct {
	node   string
	slices []*resourcev1.ResourceSlice
	// devices are by driver and name.
	devices map[[2]string]Device
}

// Host is the inventory of a host.
func Host(host *discover.Host, node string) *Inventory {
	inv := &Inventory{node: node, devices: map[[2]string]Device{}}
	for _, s := range resourceslice.Make(host, node) {
		inv.slices = append(inv.slices, typed(s))
		for _, d := range s.Spec.Devices {
			device := Device{Driver: s.Spec.Driver, Name: d.Name, GPU: d.GPU, NIC: d.NIC}
			if d.GPU != nil {
				device.UUID, device.PCIAddress = d.GPU.UUID, d.GPU.PCIAddress
			} else {
				device.Interface, device.PCIAddress = d.NIC.Interface, d.NIC.PCIAddress
			}
			inv.devices[[2]string{s.Spec.Driver, d.Name}] = device
		}
	}
	return inv
}

// typed is a slice as the allocator takes it.
func typed(s resourceslice.Slice) *resourcev1.ResourceSlice {
	out := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: s.Metadata.Name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver:   s.Spec.Driver,
			NodeName: &s.Spec.NodeName,
			Pool:     resourcev1.ResourcePool(s.Spec.Pool),
		},
	}
	for _, d := range s.Spec.Devices {
		device := resourcev1.Device{Name: d.Name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}}
		for name, a := range d.Attributes {
			device.Attributes[resourcev1.QualifiedName(name)] = resourcev1.DeviceAttribute{
				BoolValue: a.Bool, IntValue: a.Int, StringValue: a.String, VersionValue: a.Version,
			}
		}
		out.Spec.Devices = append(out.Spec.Devices, device)
	}
	return out
}

// Slices is the inventory that ResourceSlices say: those of one node, as
// `kubectl get resourceslices -o yaml` or `cdi-gen list -o resourceslice` writes them.
func Slices(file File) (*Inventory, error) {
	var docs documents
	if err := newCodec().load(&docs, file.Name, file.Data); err != nil {
		return nil, err
	}
	if len(docs.claims)+len(docs.classes) > 0 || len(docs.slices) == 0 {
		return nil, &Error{File: file.Name, Text: "an inventory holds ResourceSlices and nothing else"}
	}
	inv := &Inventory{devices: map[[2]string]Device{}}
	for _, s := range docs.slices {
		if s.Spec.NodeName == nil || inv.node != "" && inv.node != *s.Spec.NodeName {
			return nil, &Error{File: file.Name, Text: "an inventory holds the slices of one node: " +
				"kubectl get resourceslices --field-selector spec.nodeName=NODE -o yaml"}
		}
		inv.node = *s.Spec.NodeName
		for _, d := range s.Spec.Devices {
			inv.devices[[2]string{s.Spec.Driver, d.Name}] = described(s.Spec.Driver, d)
		}
		inv.slices = append(inv.slices, s)
	}
	return inv, nil
}

// described is a device as far as its attributes tell.
func described(driver string, d resourcev1.Device) Device {
	text := func(names ...string) string {
		for _, name := range names {
			for _, full := range []string{name, driver + "/" + name} {
				if a, ok := d.Attributes[resourcev1.QualifiedName(full)]; ok && a.StringValue != nil {
					return *a.StringValue
				}
			}
		}
		return ""
	}
	return Device{
		Driver: driver, Name: d.Name,
		UUID:       text("uuid"),
		Interface:  text("ifName"),
		PCIAddress: text(resourceslice.PCIBusID, "pcieBusID"),
	}
}

// Devices are all of the inventory.
func (inv *Inventory) Devices() []Device {
	var out []Device
	for _, s := range inv.slices {
		for _, d := range s.Spec.Devices {
			out = append(out, inv.devices[[2]string{s.Spec.Driver, d.Name}])
		}
	}
	return out
}

// Allocate gives all claims and templates of the files devices that fit, all
// together or none. Taken says whose a device is, or nothing for a free one.
//
// The error is an *Error for a bad input, an *Unmet for claims that cannot be
// met, else the allocator's.
func Allocate(ctx context.Context, inv *Inventory, taken func(Device) string, files []File) (*Result, error) {
	a := &allocation{inv: inv, holders: map[[2]string]string{}, cache: dracel.NewCache(100, features)}
	if err := a.load(files); err != nil {
		return nil, err
	}
	for key, d := range inv.devices {
		if holder := taken(d); holder != "" {
			a.holders[key] = holder
		}
	}
	result := &Result{}
	open, err := a.allocated(result)
	if err != nil || len(open) == 0 {
		return result, err
	}
	if why := a.impossible(ctx, open); why != nil {
		return nil, why
	}
	ctx, cancel := context.WithTimeout(ctx, SearchTime)
	defer cancel()
	results, err := a.search(ctx, open)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, a.explain(context.WithoutCancel(ctx), open, fmt.Sprintf("no allocation was found in %v", SearchTime))
	case err != nil:
		return nil, a.searchError(open, err)
	case results == nil:
		return nil, a.explain(ctx, open, "")
	}
	for i, r := range results {
		for _, d := range r.Devices.Results {
			result.Requests = append(result.Requests, Given{Claim: open[i].Name, Request: d.Request, Device: inv.devices[[2]string{d.Driver, d.Device}]})
		}
	}
	return result, nil
}

// allocation is one call of Allocate.
type allocation struct {
	inv     *Inventory
	claims  []claim
	classes map[string]*resourcev1.DeviceClass
	// holders are who has a device that is taken.
	holders map[[2]string]string
	cache   *dracel.Cache
}

// builtin are the classes that come with the drivers.
const builtin = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: mig.nvidia.com}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: dranet}
spec: {selectors: [{cel: {expression: "device.driver == 'dra.net'"}}]}
`

// load reads and checks the files. A class of theirs takes the place of a
// built-in one of that name.
func (a *allocation) load(files []File) error {
	c := newCodec()
	var defaults, docs documents
	if err := c.load(&defaults, "built-in classes", []byte(builtin)); err != nil {
		return err
	}
	for _, f := range files {
		if err := c.load(&docs, f.Name, f.Data); err != nil {
			return err
		}
	}
	a.classes = map[string]*resourcev1.DeviceClass{}
	for _, class := range defaults.classes {
		a.classes[class.Name] = class.DeviceClass
	}
	given := map[string]bool{}
	for _, class := range docs.classes {
		if given[class.Name] {
			return class.doc.fail(append(class.path, "metadata", "name"), "a second DeviceClass %q", class.Name)
		}
		if err := class.check(); err != nil {
			return err
		}
		given[class.Name] = true
		a.classes[class.Name] = class.DeviceClass
	}
	if len(docs.slices) > 0 {
		return &Error{File: files[0].Name, Text: "a ResourceSlice is inventory, not a claim: give it with --inventory"}
	}
	a.claims = docs.claims
	if len(a.claims) == 0 {
		return &Error{File: files[0].Name, Text: "there is no ResourceClaim or ResourceClaimTemplate"}
	}
	return a.checkClaims()
}

func (a *allocation) checkClaims() error {
	names := map[string]bool{}
	for i := range a.claims {
		c := &a.claims[i]
		c.Name = cmp.Or(c.Name, strings.TrimSuffix(c.GenerateName, "-"), fmt.Sprintf("claim-%d", i+1))
		if names[c.Name] {
			return c.doc.fail(append(slices.Clone(c.path), "metadata", "name"), "a second claim %q: each needs a name of its own", c.Name)
		}
		names[c.Name] = true
		if err := c.check(); err != nil {
			return err
		}
		for _, r := range c.requests() {
			if a.classes[r.class] == nil {
				return c.doc.fail(c.spec, "claim %q: request %q: there is no DeviceClass %q: add it to the input; built in are dranet, gpu.nvidia.com and mig.nvidia.com", c.Name, r.name, r.class)
			}
		}
	}
	return nil
}

// allocated takes the claims that Kubernetes has allocated already as they are,
// and returns the others. Their devices are no longer to be had.
func (a *allocation) allocated(result *Result) ([]claim, error) {
	var open []claim
	for _, c := range a.claims {
		if c.Status.Allocation == nil {
			open = append(open, c)
			continue
		}
		for _, d := range c.Status.Allocation.Devices.Results {
			key := [2]string{d.Driver, d.Device}
			device, ok := a.inv.devices[key]
			if !ok {
				return nil, c.doc.fail(append(slices.Clone(c.path), "status"), "claim %q is allocated %s of %s, which this host has not", c.Name, d.Device, d.Driver)
			}
			if holder := a.holders[key]; holder != "" {
				return nil, c.doc.fail(append(slices.Clone(c.path), "status"), "claim %q is allocated %s, which %s has", c.Name, d.Device, holder)
			}
			a.holders[key] = c.Name
			result.Requests = append(result.Requests, Given{Claim: c.Name, Request: d.Request, Device: device})
		}
		result.Notes = append(result.Notes, fmt.Sprintf("claim %q has been allocated by Kubernetes: its devices are taken as they are", c.Name))
	}
	return open, nil
}

// lister finds classes for the allocator.
type lister map[string]*resourcev1.DeviceClass

func (l lister) List() ([]*resourcev1.DeviceClass, error) {
	var out []*resourcev1.DeviceClass
	for _, c := range l {
		out = append(out, c)
	}
	return out, nil
}

func (l lister) Get(name string) (*resourcev1.DeviceClass, error) {
	if c, ok := l[name]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %q", name)
}

// search has the scheduler's allocator search. ConsumableCapacity makes it the
// "incubating" variant: "stable" hangs on everyday claims that cannot be met, and
// chooses between drivers at random.
func (a *allocation) search(ctx context.Context, open []claim) (results []resourcev1.AllocationResult, err error) {
	// The allocator panics on what validation has not seen: no stack trace for that.
	defer func() {
		if r := recover(); r != nil {
			results, err = nil, fmt.Errorf("the allocator failed on these claims: %v", r)
		}
	}()
	allocated := sets.New[structured.DeviceID]()
	for key := range a.holders {
		for _, s := range a.inv.slices {
			if s.Spec.Driver == key[0] {
				allocated.Insert(structured.MakeDeviceID(key[0], s.Spec.Pool.Name, key[1]))
			}
		}
	}
	allocator, err := structured.NewAllocator(ctx,
		structured.Features{ConsumableCapacity: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true},
		structured.AllocatedState{
			AllocatedDevices:         allocated,
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		}, lister(a.classes), a.inv.slices, a.cache)
	if err != nil {
		return nil, err
	}
	var claims []*resourcev1.ResourceClaim
	for _, c := range open {
		claims = append(claims, c.ResourceClaim)
	}
	return allocator.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.inv.node}}, claims)
}

// searchError says where the claim is that the allocator stopped at.
func (a *allocation) searchError(open []claim, err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	for _, c := range open {
		full := strings.TrimPrefix(c.Namespace+"/"+c.Name, "/")
		if own, ok := strings.CutPrefix(text, "claim "+full+": "); ok {
			return c.doc.fail(c.spec, "claim %q: %s", c.Name, own)
		}
	}
	return errors.New(text)
}
