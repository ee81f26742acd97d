//! Which packets are split: rules on flows, as text and as something to compare with.
//!
//! ```text
//! RULE   tcp|udp [src WHERE] [dst WHERE]
//! WHERE  ADDRESS[/PREFIX][:PORT[-PORT]]
//! ADDRESS  198.51.100.2, [2001:db8::2] or * for any (the prefix of IPv6 stands in the brackets too: [2001:db8::/32])
//! ```

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::RangeInclusive;
use core::str::FromStr;

/// What a packet says of its flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// TCP, not UDP.
    pub tcp: bool,
    /// Where it comes from, and where it goes: addresses.
    pub addresses: [IpAddr; 2],
    /// Where it comes from, and where it goes: ports.
    pub ports: [u16; 2],
}

/// Some flows.
///
/// ```
/// use memlane_packet_ends::split::rules::{Flow, Rule};
///
/// let rule: Rule = "tcp src 192.0.2.0/24 dst *:5201-5210".parse()?;
/// let flow = Flow {
///     tcp: true,
///     addresses: ["192.0.2.7".parse()?, "198.51.100.2".parse()?],
///     ports: [40000, 5201],
/// };
/// assert!(rule.matches(&flow));
/// assert!(!rule.matches(&Flow { tcp: false, ..flow }));
/// assert_eq!(rule.to_string(), "tcp src 192.0.2.0/24 dst *:5201-5210");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    tcp: bool,
    /// Source and destination.
    ends: [AddressRange; 2],
}

/// Some addresses and ports.
#[derive(Clone, PartialEq, Eq, Debug)]
struct AddressRange {
    net: Option<(IpAddr, u8)>,
    ports: RangeInclusive<u16>,
}

const ALL_PORTS: RangeInclusive<u16> = 0..=u16::MAX;
const ANYWHERE: AddressRange = AddressRange {
    net: None,
    ports: ALL_PORTS,
};

/// Why a text is no rule: what is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoRule {
    what: &'static str,
    text: String,
}

impl fmt::Display for NoRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.text, self.what)
    }
}

impl core::error::Error for NoRule {}

impl Rule {
    /// Is it one of these flows?
    pub fn matches(&self, flow: &Flow) -> bool {
        let ends = self.ends.iter().zip(flow.addresses).zip(flow.ports);
        let mut inside = ends.map(|((place, address), port)| place.holds(address, port));
        self.tcp == flow.tcp && inside.all(|inside| inside)
    }
}

impl AddressRange {
    fn holds(&self, address: IpAddr, port: u16) -> bool {
        let near = self.net.is_none_or(|(net, prefix)| match (net, address) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                masked4(net, prefix) == masked4(address, prefix)
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                masked6(net, prefix) == masked6(address, prefix)
            }
            _ => false,
        });
        near && self.ports.contains(&port)
    }
}

fn masked4(address: Ipv4Addr, prefix: u8) -> u32 {
    // A prefix of 0 keeps nothing.
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix));
    address.to_bits() & mask.unwrap_or(0)
}

fn masked6(address: Ipv6Addr, prefix: u8) -> u128 {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix));
    address.to_bits() & mask.unwrap_or(0)
}

impl FromStr for Rule {
    type Err = NoRule;

    fn from_str(text: &str) -> Result<Rule, NoRule> {
        let wrong = |what, text: &str| NoRule {
            what,
            text: text.to_owned(),
        };
        let mut words = text.split_whitespace();
        let tcp = match words.next() {
            Some("tcp") => true,
            Some("udp") => false,
            _ => return Err(wrong("a rule begins with tcp or udp", text)),
        };
        let mut ends = [None, None];
        while let Some(which) = words.next() {
            let n = match which {
                "src" => 0,
                "dst" => 1,
                _ => return Err(wrong("src or dst comes here", which)),
            };
            let place = words
                .next()
                .ok_or_else(|| wrong("wants an address behind it", which))?;
            let read = place.parse().map_err(|what| wrong(what, place))?;
            if ends[n].replace(read).is_some() {
                return Err(wrong("stands there twice", which));
            }
        }
        let ends = ends.map(|place| place.unwrap_or(ANYWHERE));
        if let [Some((a, _)), Some((b, _))] = [ends[0].net, ends[1].net]
            && a.is_ipv4() != b.is_ipv4()
        {
            return Err(wrong("one address is of IPv4, the other of IPv6", text));
        }
        Ok(Rule { tcp, ends })
    }
}

impl FromStr for AddressRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<AddressRange, &'static str> {
        let (net, ports) = match text.strip_prefix('[') {
            Some(rest) => {
                let (net, rest) = rest.split_once(']').ok_or("no ] behind the address")?;
                let ports = match rest {
                    "" => None,
                    rest => Some(rest.strip_prefix(':').ok_or(": comes before a port")?),
                };
                (Some(net_of(net, false)?), ports)
            }
            None => {
                let (net, ports) = match text.split_once(':') {
                    Some((net, ports)) => (net, Some(ports)),
                    None => (text, None),
                };
                let net = match net {
                    "*" => None,
                    net => Some(net_of(net, true)?),
                };
                (net, ports)
            }
        };
        let ports = ports.map_or(Ok(ALL_PORTS), ports_of)?;
        Ok(AddressRange { net, ports })
    }
}

fn net_of(text: &str, v4: bool) -> Result<(IpAddr, u8), &'static str> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address = match v4 {
        true => address.parse().map(IpAddr::V4),
        false => address.parse().map(IpAddr::V6),
    };
    let address = address.map_err(|_| {
        "no address (198.51.100.2, or * for any; those of IPv6 stand in brackets: [2001:db8::2])"
    })?;
    let most = if v4 { 32 } else { 128 };
    let prefix = prefix.map_or(Some(most), number);
    let prefix = prefix
        .filter(|prefix| *prefix <= most)
        .ok_or("no such prefix")?;
    let clean = match address {
        IpAddr::V4(address) => masked4(address, prefix) == address.to_bits(),
        IpAddr::V6(address) => masked6(address, prefix) == address.to_bits(),
    };
    clean
        .then_some((address, prefix))
        .ok_or("the address has bits behind its prefix: make them 0")
}

fn ports_of(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (number(low), number(high)) {
        (Some(low), Some(high)) if low <= high => Ok(low..=high),
        _ => Err("no port, or none that are in order"),
    }
}

/// Digits only: no sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|c| c.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tcp { "tcp" } else { "udp" })?;
        for (name, place) in ["src", "dst"].into_iter().zip(&self.ends) {
            if *place != ANYWHERE {
                write!(f, " {name} {place}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.net {
            None => f.write_str("*")?,
            Some((IpAddr::V4(address), 32)) => write!(f, "{address}")?,
            Some((IpAddr::V4(address), prefix)) => write!(f, "{address}/{prefix}")?,
            Some((IpAddr::V6(address), 128)) => write!(f, "[{address}]")?,
            Some((IpAddr::V6(address), prefix)) => write!(f, "[{address}/{prefix}]")?,
        }
        let (low, high) = (self.ports.start(), self.ports.end());
        match (self.ports == ALL_PORTS, low == high) {
            (true, _) => Ok(()),
            (false, true) => write!(f, ":{low}"),
            (false, false) => write!(f, ":{low}-{high}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(src: &str, dst: &str, ports: [u16; 2]) -> Flow {
        Flow {
            tcp: true,
            addresses: [src, dst].map(|text| text.parse().unwrap()),
            ports,
        }
    }

    fn rule(text: &str) -> Rule {
        text.parse().unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    #[test]
    fn a_rule_holds_for_its_flows_and_for_no_others() {
        let four = flow("192.0.2.7", "198.51.100.2", [40000, 5201]);
        let six = flow("2001:db8::7", "2001:db8:1::2", [40000, 5201]);
        let cases = [
            ("tcp", true, true),
            ("udp", false, false),
            ("tcp dst 198.51.100.2:5201", true, false),
            ("tcp dst 198.51.100.2:5202", false, false),
            ("tcp dst 198.51.100.3", false, false),
            ("tcp src 198.51.100.2", false, false),
            ("tcp src 192.0.2.0/29 dst *:5200-5201", true, false),
            ("tcp src 192.0.2.0/30", false, false),
            ("tcp src 0.0.0.0/0", true, false),
            ("tcp src [::/0]", false, true),
            ("tcp dst *:5201", true, true),
            ("tcp src *:1-39999", false, false),
            ("tcp dst [2001:db8:1::2]:5201", false, true),
            ("tcp dst [2001:db8::/32] src [2001:db8::7]", false, true),
            ("tcp dst [2001:db8::/48]", false, false),
        ];
        for (text, is_four, is_six) in cases {
            let rule = rule(text);
            assert_eq!(
                (rule.matches(&four), rule.matches(&six)),
                (is_four, is_six),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_read_is_written_as_it_stands() {
        for text in [
            "tcp",
            "udp src 192.0.2.7",
            "tcp src 192.0.2.0/24:1-2 dst *:5201",
            "tcp dst [2001:db8::/32]:443",
            "tcp dst [2001:db8::2]",
            "udp dst 0.0.0.0/0:0-1",
        ] {
            assert_eq!(rule(text).to_string(), text);
        }
        assert_eq!(rule(" tcp  dst\t*:0-65535 "), rule("tcp"));
        assert_eq!(rule("tcp dst *:5-5 src *").to_string(), "tcp dst *:5");
    }

    #[test]
    fn what_is_no_rule_is_refused_with_what_is_wrong() {
        for (text, part) in [
            ("", "tcp or udp"),
            ("icmp", "tcp or udp"),
            ("tcp 192.0.2.7", "src or dst"),
            ("tcp dst", "wants an address"),
            ("tcp dst 192.0.2", "no address"),
            ("tcp dst 2001:db8::2", "no address"),
            ("tcp dst [192.0.2.1]", "no address"),
            ("tcp dst [2001:db8::2", "no ]"),
            ("tcp dst [2001:db8::2]443", ": comes"),
            ("tcp dst 192.0.2.0/33", "prefix"),
            ("tcp dst 192.0.2.0/+8", "prefix"),
            ("tcp dst [::/129]", "prefix"),
            ("tcp dst 192.0.2.7/24", "make them 0"),
            ("tcp dst *:65536", "no port"),
            ("tcp dst *:", "no port"),
            ("tcp dst *:7-6", "no port"),
            ("tcp dst *:7-", "no port"),
            ("tcp dst *:1 dst *:2", "twice"),
            ("tcp dst [::1] src 192.0.2.7", "IPv4"),
        ] {
            let wrong = text.parse::<Rule>().unwrap_err().to_string();
            assert!(wrong.contains(part), "{text}: {wrong}");
        }
    }
}
