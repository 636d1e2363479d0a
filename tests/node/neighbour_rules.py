# SPDX-License-Identifier: Apache-2.0
"""Rules as other programs of a node leave them, reduced to what packets of a Service can meet.

Owns: the rules, with the names, marks and order that their programs give them, for both families. `{pods}` is the
range of pods. Docker and ufw drop what is forwarded; what lets pods through there is what a CNI adds (`CNI-FORWARD`).
Never: sets of addresses; where Calico asks a set of pools, the range stands.
"""

DOCKER = """*filter
:FORWARD DROP [0:0]
:CNI-FORWARD - [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
-A FORWARD -j CNI-FORWARD
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 -j ACCEPT
-A CNI-FORWARD -s {pods} -j ACCEPT
-A CNI-FORWARD -d {pods} -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER -i docker0 -j RETURN
COMMIT
"""

UFW = """*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:CNI-FORWARD - [0:0]
:ufw-before-input - [0:0]
:ufw-before-forward - [0:0]
:ufw-user-input - [0:0]
:ufw-user-forward - [0:0]
:ufw-reject-forward - [0:0]
-A INPUT -j ufw-before-input
-A FORWARD -j CNI-FORWARD
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-reject-forward
-A CNI-FORWARD -s {pods} -j ACCEPT
-A CNI-FORWARD -d {pods} -j ACCEPT
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p {icmp} -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
COMMIT
"""

CALICO = """*raw
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
-A cali-PREROUTING -j MARK --set-xmark 0x0/0xf0000
-A cali-PREROUTING -i cali+ -j MARK --set-xmark 0x40000/0x40000
COMMIT
*filter
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A FORWARD -m comment --comment "cali:mp77cMpurHhyjLrM" -j MARK --set-xmark 0x10000/0x10000
-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-from-wl-dispatch -m conntrack --ctstate INVALID -j DROP
COMMIT
*nat
:cali-PREROUTING - [0:0]
:cali-POSTROUTING - [0:0]
:cali-OUTPUT - [0:0]
:cali-fip-dnat - [0:0]
:cali-fip-snat - [0:0]
:cali-nat-outgoing - [0:0]
-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
-A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
-A OUTPUT -m comment --comment "cali:tVnHkvAo15HuiPy0" -j cali-OUTPUT
-A cali-PREROUTING -j cali-fip-dnat
-A cali-OUTPUT -j cali-fip-dnat
-A cali-POSTROUTING -j cali-fip-snat
-A cali-POSTROUTING -j cali-nat-outgoing
-A cali-nat-outgoing -s {pods} ! -d {pods} -j MASQUERADE
COMMIT
"""

CILIUM = """*mangle
:CILIUM_PRE_mangle - [0:0]
:CILIUM_POST_mangle - [0:0]
-A PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_mangle" -j CILIUM_PRE_mangle
-A POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_mangle" -j CILIUM_POST_mangle
COMMIT
*filter
:CILIUM_FORWARD - [0:0]
:CILIUM_INPUT - [0:0]
:CILIUM_OUTPUT - [0:0]
-A INPUT -m comment --comment "cilium-feeder: CILIUM_INPUT" -j CILIUM_INPUT
-A FORWARD -m comment --comment "cilium-feeder: CILIUM_FORWARD" -j CILIUM_FORWARD
-A OUTPUT -m comment --comment "cilium-feeder: CILIUM_OUTPUT" -j CILIUM_OUTPUT
-A CILIUM_FORWARD -o cilium_host -j ACCEPT
-A CILIUM_FORWARD -i cilium_host -j ACCEPT
-A CILIUM_FORWARD -i lxc+ -j ACCEPT
-A CILIUM_FORWARD -i cilium_net -j ACCEPT
-A CILIUM_INPUT -m mark --mark 0x200/0xf00 -j ACCEPT
-A CILIUM_OUTPUT -m mark --mark 0xa00/0xe00 -j ACCEPT
-A CILIUM_OUTPUT -m mark ! --mark 0xe00/0xf00 -m mark ! --mark 0xa00/0xe00 -j MARK --set-xmark 0xc00/0xf00
COMMIT
*nat
:CILIUM_PRE_nat - [0:0]
:CILIUM_POST_nat - [0:0]
:CILIUM_OUTPUT_nat - [0:0]
-A PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_nat" -j CILIUM_PRE_nat
-A OUTPUT -m comment --comment "cilium-feeder: CILIUM_OUTPUT_nat" -j CILIUM_OUTPUT_nat
-A POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
-A CILIUM_POST_nat -s {pods} ! -d {pods} ! -o cilium_+ -j MASQUERADE
-A CILIUM_POST_nat -m mark --mark 0xa00/0xe00 -j ACCEPT
COMMIT
"""

FIREWALLD = """table inet firewalld {
  chain mangle_PREROUTING { type filter hook prerouting priority -140; policy accept; }
  chain nat_PREROUTING { type nat hook prerouting priority -90; policy accept; }
  chain nat_POSTROUTING { type nat hook postrouting priority 110; policy accept; }
  chain filter_INPUT {
    type filter hook input priority 10; policy accept;
    ct state { established, related } accept
    ct status dnat accept
    iifname "lo" accept
    meta l4proto { icmp, ipv6-icmp } accept
    reject with icmpx admin-prohibited
  }
  chain filter_FORWARD {
    type filter hook forward priority 10; policy accept;
    ct state { established, related } accept
    ct status dnat accept
    iifname "lo" accept
    reject with icmpx admin-prohibited
  }
  chain filter_OUTPUT {
    type filter hook output priority 10; policy accept;
    ct state { established, related } accept
    oifname "lo" accept
  }
}
"""

CHAINS = {"docker": DOCKER, "ufw": UFW, "calico": CALICO, "cilium": CILIUM}
