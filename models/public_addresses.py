"""Which addresses are out on the internet, and which are ours, or nobody's.

The list is our own, after IANA's registries of special addresses: what `ipaddress` calls global
differs from one version of Python to the next. IPv6 is the other way round: only what was ever
given to anybody counts, and within that the same kinds of exceptions.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host: connecting to it is connecting to oneself
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a carrier's NAT; metadata of some clouds
        "127.0.0.0/8",
        "168.63.129.16/32",  # public to look at, but Azure's own wire to its machines
        "169.254.0.0/16",  # link-local, and instance metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4: any IPv4 address may hide in it
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
_GIVEN_OUT = ip_network("2000::/3")
_MAPPED = ip_network("::ffff:0:0/96")
_NAT64 = ip_network("64:ff9b::/96")


def parse(text: str) -> Address:
    """Of what a socket calls it. The one that is really reached, where it is wrapped in another."""
    address = ip_address(text)
    if address in _MAPPED or address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Of a parsed one."""
    if isinstance(address, IPv6Address) and address not in _GIVEN_OUT:
        return False
    return not any(address in network for network in _SPECIAL)
