package cdi

import (
	"fmt"
	"path"
	"reflect"

	"podrail/internal/hookapi"
	"podrail/pkg/discover"

	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// hookTimeout is in seconds. Moving eight NICs takes about 150 ms; the hook's
// own wait for its lock must fit into this.
const hookTimeout = 60

// nicPlan is what the spec says of one NIC.
type nicPlan struct {
	nic   discover.NIC
	nodes []discover.DeviceNode
	// netdev is the hook's argument for it.
	netdev hookapi.Netdev
}

// nicSpec has a device for each NIC and "all". In "all" one createRuntime hook
// lists all NICs: a hook for each would run them one after the other and could
// not undo the first when the second fails. The poststop hook takes no NIC's
// name, so it is at spec level, once.
func nicSpec(root *discover.Root, host *discover.Host, nics []discover.NIC, o Options) (*specs.Spec, error) {
	withHook := o.NICMode == NICHook || o.NICMode == NICNative
	if !withHook && (len(o.NICConfig) > 0 || o.Memlock != "") {
		return nil, fmt.Errorf("NIC configuration and memlock need the hook, and NIC mode %s writes device nodes alone: use NIC mode %s", o.NICMode, NICHook)
	}
	if err := o.NICConfig.check(nics); err != nil {
		return nil, err
	}
	if withHook {
		if err := checkHook(root, o.HookPath); err != nil {
			return nil, err
		}
	}
	var plans []nicPlan
	for _, nic := range nics {
		plan, err := planNIC(host, nic, o.MAD)
		if err != nil {
			return nil, err
		}
		plan.netdev.Native = o.NICMode == NICNative && nic.Interface != ""
		plan.netdev.Config = o.NICConfig.of(nic)
		if !withHook && len(plan.nodes) == 0 {
			return nil, fmt.Errorf("NIC %s has no RDMA device, and NIC mode %s writes device nodes alone: "+
				"leave it out, or use NIC mode %s", nic.Name, o.NICMode, NICHook)
		}
		plans = append(plans, plan)
	}
	spec := &specs.Spec{}
	if o.NICLibraries {
		mounts, err := nicLibraries(root, nics)
		if err != nil {
			return nil, err
		}
		spec.ContainerEdits.Mounts = mounts
	}
	for _, plan := range plans {
		spec.Devices = append(spec.Devices, nicDevice(plan.nic.Name, []nicPlan{plan}, o))
	}
	spec.Devices = append(spec.Devices, nicDevice(allDevices, plans, o))
	if withHook {
		spec.ContainerEdits.Hooks = []*specs.Hook{hook(o.HookPath, "poststop")}
	}
	return spec, nil
}

// planNIC checks that the NIC can be given: its name must be one that CDI and
// the hook's arguments can carry, and an RDMA device needs its uverbs node.
func planNIC(host *discover.Host, nic discover.NIC, mad bool) (nicPlan, error) {
	plan := nicPlan{nic: nic, netdev: hookapi.Netdev{Name: nic.Name, ID: nic.Identity}}
	if nic.Name == allDevices || parser.ValidateDeviceName(nic.Name) != nil {
		return plan, fmt.Errorf("NIC %q: its name cannot be a CDI device's (letters, digits and '_-.:', not %q): rename it, or leave it out",
			nic.Name, allDevices)
	}
	for _, rdma := range nic.RDMA {
		if rdma.Uverbs == nil {
			return plan, fmt.Errorf("NIC %s: its RDMA device %s has no node in /dev/infiniband: load ib_uverbs (modprobe ib_uverbs)", nic.Name, rdma.Name)
		}
		given := []discover.DeviceNode{*rdma.Uverbs}
		if mad {
			given = append(given, rdma.UMAD...)
		}
		for _, n := range given {
			plan.netdev.Nodes = append(plan.netdev.Nodes, path.Base(n.Path))
		}
		plan.nodes = append(plan.nodes, given...)
		if plan.netdev.RDMA == "" {
			plan.netdev.RDMA = rdma.Name
		}
	}
	if len(plan.nodes) > 0 && host.RDMACM != nil {
		plan.nodes = append(plan.nodes, *host.RDMACM)
	}
	return plan, checkNetdev(plan.netdev)
}

// checkNetdev makes sure that the hook will read what the spec says.
func checkNetdev(n hookapi.Netdev) error {
	parsed, err := hookapi.ParseNetdev(n.String())
	if err == nil && !reflect.DeepEqual(parsed, n) {
		err = fmt.Errorf("netdev-hook would read %q as %+v", n.String(), parsed)
	}
	if err != nil {
		return fmt.Errorf("NIC %q: %w", n.Name, err)
	}
	return nil
}

// nicDevice is a device with the given NICs' nodes and one hook for all of them.
func nicDevice(name string, plans []nicPlan, o Options) specs.Device {
	var all []discover.DeviceNode
	var edits specs.ContainerEdits
	args := []string{}
	for _, p := range plans {
		all = append(all, p.nodes...)
		args = append(args, "--netdev", p.netdev.String())
		if p.netdev.Config != nil {
			args = append(args, "--config", p.netdev.Config.String())
		}
		if p.netdev.Native {
			edits.NetDevices = append(edits.NetDevices, &specs.LinuxNetDevice{HostInterfaceName: p.nic.Interface, Name: p.nic.Interface})
		}
	}
	if o.Memlock != "" {
		args = append(args, "--memlock", o.Memlock)
	}
	edits.DeviceNodes = nodes(all)
	if o.NICMode == NICHook || o.NICMode == NICNative {
		edits.Hooks = []*specs.Hook{hook(o.HookPath, "createRuntime", args...)}
	}
	return specs.Device{Name: name, ContainerEdits: edits}
}

// hook is netdev-hook at the given stage; its first argument is its own name, as
// an execv's.
func hook(path, stage string, args ...string) *specs.Hook {
	timeout := hookTimeout
	return &specs.Hook{
		HookName: stage,
		Path:     path,
		Args:     append([]string{"netdev-hook", stage}, args...),
		Timeout:  &timeout,
	}
}
