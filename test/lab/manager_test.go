package lab

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"podrail/internal/nstest"
)

// dhcpServer is the NIC at the other end of e1000e's wire.
const dhcpServer = "0000:00:1e.0"

// TestManaged: somebody manages the NIC on the host, and gets a DHCP lease for it.
// The container has the address for good; the lease is what it was afterwards.
func TestManaged(t *testing.T) {
	server := nicAt(t, dhcpServer)
	sh(t, `
		ip netns add dhcp && ip link set $1 netns dhcp && ip -n dhcp link set lo up
		ip -n dhcp addr add 10.50.0.1/24 dev $1 && ip -n dhcp link set $1 up
		ip netns exec dhcp dnsmasq --port=0 --interface=$1 --bind-interfaces --dhcp-range=10.50.0.100,10.50.0.150,1h \
			--dhcp-option=3 --dhcp-option=121,10.60.0.0/16,10.50.0.1 --dhcp-leasefile=/run/dnsmasq.leases --pid-file=/run/dnsmasq.pid --user=root --conf-file=/dev/null
	`, server)
	t.Cleanup(func() { sh(t, "kill $(cat /run/dnsmasq.pid); ip netns del dhcp") })
	nic := nicAt(t, e1000e)
	for _, manager := range []struct{ name, start, stop string }{
		{"systemd-networkd", `
			mkdir -p /etc/systemd/network
			printf '[Match]\nName=%s\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=no\nAddress=192.168.50.5/24\n[Route]\nDestination=10.70.0.0/16\nGateway=192.168.50.1\n' "$1" >/etc/systemd/network/10-lab.network
			systemctl start systemd-networkd
		`, "systemctl stop systemd-networkd.socket systemd-networkd; rm /etc/systemd/network/10-lab.network"},
		{"NetworkManager", `
			mkdir -p /etc/NetworkManager/conf.d /etc/NetworkManager/system-connections /var/lib/NetworkManager
			printf '[main]\nplugins=keyfile\nno-auto-default=*\n[keyfile]\nunmanaged-devices=except:interface-name:%s\n' "$1" >/etc/NetworkManager/conf.d/lab.conf
			printf '[connection]\nid=lab\ntype=ethernet\ninterface-name=%s\n[ipv4]\nmethod=auto\naddress1=192.168.50.5/24\nroute1=10.70.0.0/16,192.168.50.1\n[ipv6]\nmethod=link-local\n' "$1" >/etc/NetworkManager/system-connections/lab.nmconnection
			chmod 600 /etc/NetworkManager/system-connections/lab.nmconnection
			systemctl start dbus NetworkManager
		`, "systemctl stop NetworkManager"},
	} {
		t.Run(manager.name, func(t *testing.T) {
			sh(t, "ip link set $1 down; ip addr flush dev $1", nic)
			t.Cleanup(func() {
				// They have the kernel make no link-local addresses.
				exec.Command("sh", "-c", manager.stop+"; ip link set $1 down; ip addr flush dev $1; ip link set $1 addrgenmode eui64", "sh", nic).Run()
			})
			sh(t, manager.start, nic)
			leased := func() error {
				out := host.Run(t, "ip", "addr", "show", "dev", nic) + host.Run(t, "ip", "route", "show", "dev", nic)
				for _, want := range []string{"10.50.0.1", "192.168.50.5", "10.60.0.0/16", "10.70.0.0/16", "fe80"} {
					if !strings.Contains(out, want) {
						return fmt.Errorf("%s is missing:\n%s", want, out)
					}
				}
				return nil
			}
			nstest.Eventually(t, settle, leased)
			awaitIPv6(t, host, nic)
			sh(t, "sleep 2") // the manager's last touches
			before := snapshot(t, nic)

			for _, end := range []string{"poststop", "killed"} {
				c := newContainer(t)
				c.attach(t, nic+",id="+identity(t, nic))
				inside := c.Run(t, "ip", "addr", "show", "dev", nic)
				if !strings.Contains(inside, "10.50.0.1") || strings.Contains(inside, "dynamic") {
					t.Errorf("the lease's address is not permanent in the container:\n%s", inside)
				}
				if end == "poststop" {
					c.poststop(t)
				} else {
					c.kill()
					awaitHome(t)
				}
				var difference string
				nstest.Eventually(t, settle, func() error {
					after, err := describe(nic)
					if err != nil {
						return err
					}
					if difference = diff(before, after); difference != "" {
						return fmt.Errorf("%s: not as it was (-before +after):\n%s", end, difference)
					}
					return nil
				})
			}
		})
	}
}
