//! Which packets go to which receive queue: rules, the indirection table and its contexts, as `SIOCETHTOOL` has them
//! (`include/uapi/linux/ethtool.h`). Buffers are words, so that they are aligned as the kernel's structures are.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// Commands.
pub mod command {
    /// `ETHTOOL_GFLAGS`, `ETHTOOL_SFLAGS`.
    pub const GET_FLAGS: u32 = 37;
    /// `ETHTOOL_SFLAGS`.
    pub const SET_FLAGS: u32 = 38;
    /// `ETHTOOL_SRXCLSRLDEL`, `ETHTOOL_SRXCLSRLINS`.
    pub const DELETE_RULE: u32 = 49;
    /// `ETHTOOL_SRXCLSRLINS`.
    pub const INSERT_RULE: u32 = 50;
    /// `ETHTOOL_GRSSH`, `ETHTOOL_SRSSH`.
    pub const GET_SPREAD: u32 = 70;
    /// `ETHTOOL_SRSSH`.
    pub const SET_SPREAD: u32 = 71;
}

/// `ETH_FLAG_NTUPLE`: rules are looked at.
pub const NTUPLE: u32 = 1 << 27;
/// `TCP_V4_FLOW`, `TCP_V6_FLOW`; `FLOW_RSS`: to a context, not a queue.
const TCP: [u32; 2] = [1, 5];
const TO_CONTEXT: u32 = 0x2000_0000;
/// `RX_CLS_LOC_ANY`: the driver chooses a place for the rule.
const ANY_PLACE: u32 = u32::MAX;
/// `struct ethtool_rxnfc`: all of it, and where its parts are.
const RULE: usize = 192;
const RULE_FLOW: usize = 16;
const RULE_VALUES: usize = 20;
const RULE_MASKS: usize = 92;
const RULE_QUEUE: usize = 168;
const RULE_PLACE: usize = 176;
const RULE_CONTEXT: usize = 184;
/// `struct ethtool_rxfh` without its table.
const SPREAD: usize = 24;
const SPREAD_CONTEXT: usize = 4;
const SPREAD_ENTRIES: usize = 8;
const SPREAD_TRANSFORM: usize = 17;
/// `RXH_XFRM_NO_CHANGE`.
const AS_IT_IS: u8 = 0xff;
/// `ETH_RXFH_CONTEXT_ALLOC`: a new one.
const NEW_CONTEXT: u32 = u32::MAX;
/// Entries of an indirection table that we take; interfaces have 128 to some thousands.
pub const ENTRIES_MAX: u32 = 1 << 16;

/// Words that hold `bytes` bytes.
fn words(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(8)]
}

fn put(words: &mut [u64], at: usize, bytes: &[u8]) {
    for (nth, byte) in bytes.iter().enumerate() {
        let at = at + nth;
        let mut word = words[at / 8].to_ne_bytes();
        word[at % 8] = *byte;
        words[at / 8] = u64::from_ne_bytes(word);
    }
}

fn put_u32(words: &mut [u64], at: usize, value: u32) {
    put(words, at, &value.to_ne_bytes());
}

/// A number of 32 bits at a multiple of 4; 0 beyond the end.
fn get_u32(words: &[u64], at: usize) -> u32 {
    let word = words.get(at / 8).copied().unwrap_or(0).to_ne_bytes();
    let at = at % 8;
    u32::from_ne_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]])
}

/// `struct ethtool_value`.
pub fn flags(command: u32, flags: u32) -> Vec<u64> {
    let mut value = words(8);
    put_u32(&mut value, 0, command);
    put_u32(&mut value, 4, flags);
    value
}

/// The flags of an answer.
pub fn flags_of(answer: &[u64]) -> u32 {
    get_u32(answer, 4)
}

/// Asks for the indirection table; with `entries` 0 only how many it has.
pub fn spread(entries: u32) -> Vec<u64> {
    let mut value = words(SPREAD + entries.min(ENTRIES_MAX) as usize * 4);
    put_u32(&mut value, 0, command::GET_SPREAD);
    put_u32(&mut value, SPREAD_ENTRIES, entries.min(ENTRIES_MAX));
    value
}

/// How many entries an answer says that there are.
pub fn entries_of(answer: &[u64]) -> u32 {
    get_u32(answer, SPREAD_ENTRIES)
}

/// The table of an answer.
pub fn spread_of(answer: &[u64]) -> Vec<u32> {
    let room = (answer.len() * 8).saturating_sub(SPREAD) / 4;
    let entries = room.min(entries_of(answer).min(ENTRIES_MAX) as usize);
    let at = |nth| get_u32(answer, SPREAD + nth * 4);
    (0..entries).map(at).collect()
}

/// Sets the table of the interface, or of a context; an empty one: the interface's own again, or the context goes.
pub fn set_spread(context: Context, table: &[u32]) -> Vec<u64> {
    let mut value = words(SPREAD + table.len() * 4);
    put_u32(&mut value, 0, command::SET_SPREAD);
    let context = match context {
        Context::Interface => 0,
        Context::New => NEW_CONTEXT,
        Context::Is(number) => number,
    };
    put_u32(&mut value, SPREAD_CONTEXT, context);
    let entries = u32::try_from(table.len()).unwrap_or(0);
    put_u32(&mut value, SPREAD_ENTRIES, entries);
    put(&mut value, SPREAD_TRANSFORM, &[AS_IT_IS]);
    for (nth, queue) in table.iter().enumerate() {
        put_u32(&mut value, SPREAD + nth * 4, *queue);
    }
    value
}

/// The context of an answer: the number of a new one.
pub fn context_of(answer: &[u64]) -> u32 {
    get_u32(answer, SPREAD_CONTEXT)
}

/// Which indirection table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// The interface's.
    Interface,
    /// That of a context that is to be made.
    New,
    /// Of this one.
    Is(u32),
}

/// Where a rule's packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To this queue.
    Queue(u32),
    /// To one of this context's queues.
    Context(u32),
}

/// Asks for a rule.
pub fn insert(flow: &Flow, target: Target) -> Vec<u64> {
    let mut value = words(RULE);
    put_u32(&mut value, 0, command::INSERT_RULE);
    let kind = TCP[usize::from(flow.is_v6())];
    match target {
        Target::Queue(queue) => {
            put_u32(&mut value, RULE_FLOW, kind);
            put(&mut value, RULE_QUEUE, &u64::from(queue).to_ne_bytes());
        }
        Target::Context(context) => {
            put_u32(&mut value, RULE_FLOW, kind | TO_CONTEXT);
            put_u32(&mut value, RULE_CONTEXT, context);
        }
    }
    put_u32(&mut value, RULE_PLACE, ANY_PLACE);
    for (end, place) in flow.ends.iter().enumerate() {
        place.lay_out(end, flow.is_v6(), &mut value);
    }
    value
}

/// Where the driver has put it.
pub fn place_of(answer: &[u64]) -> u32 {
    get_u32(answer, RULE_PLACE)
}

/// Takes the rule at a place away.
pub fn delete(place: u32) -> Vec<u64> {
    let mut value = words(RULE);
    put_u32(&mut value, 0, command::DELETE_RULE);
    put_u32(&mut value, RULE_PLACE, place);
    value
}

/// TCP flows, as the packet lane's rules have them, one port at each end:
///
/// ```text
/// RULE   tcp [src WHERE] [dst WHERE]
/// WHERE  ADDRESS[/PREFIX][:PORT]
/// ADDRESS  192.0.2.1, [2001:db8::1] (its prefix stands in the brackets) or *; one end at least has an address
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Source and destination.
    ends: [Endpoint; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Endpoint {
    net: Option<(IpAddr, u8)>,
    port: Option<u16>,
}

impl Flow {
    fn is_v6(&self) -> bool {
        let addresses = self.ends.iter().filter_map(|end| end.net);
        addresses.into_iter().any(|(address, _)| address.is_ipv6())
    }
}

impl Endpoint {
    /// Addresses of both ends come first, then their ports, in the network's order; masks likewise.
    fn lay_out(&self, end: usize, v6: bool, value: &mut [u64]) {
        let len = if v6 { 16 } else { 4 };
        let address = end * len;
        let port = 2 * len + end * 2;
        if let Some((net, prefix)) = self.net {
            let octets = match net {
                IpAddr::V4(net) => net.octets().to_vec(),
                IpAddr::V6(net) => net.octets().to_vec(),
            };
            let mask = mask(prefix, len);
            let masked: Vec<u8> = octets.iter().zip(&mask).map(|(a, b)| a & b).collect();
            put(value, RULE_VALUES + address, &masked);
            put(value, RULE_MASKS + address, &mask);
        }
        if let Some(number) = self.port {
            put(value, RULE_VALUES + port, &number.to_be_bytes());
            put(value, RULE_MASKS + port, &[0xff; 2]);
        }
    }
}

fn mask(prefix: u8, len: usize) -> Vec<u8> {
    let byte = |nth: usize| {
        let bits = usize::from(prefix).saturating_sub(nth * 8).min(8);
        // 0 to 8 bits of a byte.
        !(0xff_u16 >> bits).to_be_bytes()[1]
    };
    (0..len).map(byte).collect()
}

impl FromStr for Flow {
    type Err = String;

    fn from_str(text: &str) -> Result<Flow, String> {
        let mut words = text.split_whitespace();
        if words.next() != Some("tcp") {
            return Err(format!("{text:?}: a rule begins with tcp"));
        }
        let mut ends: [Option<Endpoint>; 2] = [None; 2];
        while let Some(word) = words.next() {
            let end = match word {
                "src" => 0,
                "dst" => 1,
                _ => return Err(format!("{text:?}: {word:?} is neither src nor dst")),
            };
            let place = words.next().ok_or(format!("{text:?}: {word} of what?"))?;
            if ends[end].replace(place.parse()?).is_some() {
                return Err(format!("{text:?}: {word} twice"));
            }
        }
        let ends = ends.map(Option::unwrap_or_default);
        let flow = Flow { ends };
        let families = ends
            .iter()
            .filter_map(|end| end.net.map(|(a, _)| a.is_ipv6()));
        let families: Vec<bool> = families.collect();
        match &families[..] {
            [] => Err(format!(
                "{text:?}: one end must have an address: it says whether the flow is IPv4 or IPv6"
            )),
            [one, two] if one != two => Err(format!("{text:?}: one end is IPv4, one IPv6")),
            _ => Ok(flow),
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let wrong = || format!("{text:?} is no ADDRESS[/PREFIX][:PORT]");
        let (net, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port {
            "" => None,
            port => {
                let number = port.strip_prefix(':').and_then(|port| port.parse().ok());
                Some(number.filter(|port| *port > 0).ok_or_else(wrong)?)
            }
        };
        if net == "*" && !text.starts_with('[') {
            return Ok(Endpoint { net: None, port });
        }
        let (address, prefix) = net
            .split_once('/')
            .map_or((net, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        if address.is_ipv6() != text.starts_with('[') {
            return Err(wrong());
        }
        let bits = if address.is_ipv6() { 128 } else { 32 };
        let prefix = prefix.map_or(Some(bits), |prefix| prefix.parse().ok());
        let prefix = prefix.filter(|prefix| *prefix <= bits).ok_or_else(wrong)?;
        Ok(Endpoint {
            net: Some((address, prefix)),
            port,
        })
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tcp")?;
        for (name, place) in ["src", "dst"].into_iter().zip(self.ends) {
            match (place.net, place.port) {
                (None, None) => continue,
                (None, Some(_)) => write!(f, " {name} *")?,
                (Some((net, prefix)), _) if net.is_ipv6() => write!(f, " {name} [{net}/{prefix}]")?,
                (Some((net, prefix)), _) => write!(f, " {name} {net}/{prefix}")?,
            }
            if let Some(port) = place.port {
                write!(f, ":{port}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Sizes and places as a C compiler has them for `linux/ethtool.h` on x86-64 and arm64.
    #[test]
    fn a_rule_is_laid_out_as_the_kernel_reads_it() {
        let flow: Flow = "tcp src 192.0.2.77/24 dst 192.0.2.1:5201".parse().unwrap();
        let value = bytes(&insert(&flow, Target::Queue(15)));
        assert_eq!(value.len(), 192);
        assert_eq!(value[..4], 50_u32.to_ne_bytes());
        assert_eq!(value[16..20], 1_u32.to_ne_bytes(), "TCP_V4_FLOW");
        assert_eq!(value[20..33], [192, 0, 2, 0, 192, 0, 2, 1, 0, 0, 20, 81, 0]);
        let mask = [255, 255, 255, 0, 255, 255, 255, 255, 0, 0, 255, 255, 0];
        assert_eq!(value[92..105], mask);
        assert_eq!(value[168..176], 15_u64.to_ne_bytes());
        assert_eq!(value[176..180], u32::MAX.to_ne_bytes());
        let flow: Flow = "tcp dst [2001:db8::1]:80".parse().unwrap();
        let value = bytes(&insert(&flow, Target::Context(3)));
        assert_eq!(value[16..20], 0x2000_0005_u32.to_ne_bytes());
        assert_eq!(value[20 + 16..20 + 20], [0x20, 1, 0x0d, 0xb8]);
        assert_eq!(value[20 + 34..20 + 36], [0, 80]);
        assert_eq!(value[168..176], [0; 8]);
        assert_eq!(value[184..188], 3_u32.to_ne_bytes());
        let gone = bytes(&delete(7));
        assert_eq!(
            (&gone[..4], &gone[176..180]),
            (&49_u32.to_ne_bytes()[..], &7_u32.to_ne_bytes()[..])
        );
    }

    #[test]
    fn a_table_is_laid_out_as_the_kernel_reads_it() {
        let value = bytes(&set_spread(Context::New, &[6, 7, 6]));
        assert_eq!(
            value[..12],
            [71_u32, u32::MAX, 3].map(u32::to_ne_bytes).concat()
        );
        assert_eq!(value[12..24], [0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0]);
        assert_eq!(value[24..36], [6_u32, 7, 6].map(u32::to_ne_bytes).concat());
        let mut answer = spread(3);
        put_u32(&mut answer, SPREAD_ENTRIES, u32::MAX);
        assert_eq!(spread_of(&answer), [0; 4], "as much as there is");
        assert_eq!(spread_of(&[]), [0_u32; 0]);
    }

    #[test]
    fn rules_are_read_as_written_and_nothing_else_is_one() {
        for text in [
            "tcp dst 192.0.2.1/32:5201",
            "tcp src [2001:db8::/32] dst *:80",
            "tcp src 0.0.0.0/0 dst *:1",
        ] {
            assert_eq!(text.parse::<Flow>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "udp dst 192.0.2.1",
            "tcp",
            "tcp dst *:5201",
            "tcp dst",
            "tcp to 192.0.2.1",
            "tcp dst 192.0.2.1 dst 192.0.2.2",
            "tcp src 192.0.2.1 dst [::1]",
            "tcp dst 192.0.2.1/33",
            "tcp dst 192.0.2.1:0",
            "tcp dst 192.0.2.1:80-90",
            "tcp dst 2001:db8::1",
            "tcp dst [192.0.2.1]",
            "tcp dst [::1]80",
            "tcp dst [::1/129]",
        ] {
            assert!(wrong.parse::<Flow>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_rule_or_none(text in "(tcp|udp) (src|dst)? ?[\\[\\]0-9:./* a-f]{0,30}") {
            if let Ok(flow) = text.parse::<Flow>() {
                prop_assert_eq!(flow.to_string().parse(), Ok(flow));
            }
        }
    }
}
