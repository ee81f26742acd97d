//! Socket addresses, as C has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// As `struct sockaddr_storage`.
pub(crate) fn to_c(addr: &SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: integers only, for which zero is a value.
    let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    match addr {
        SocketAddr::V4(v4) => {
            let inner = libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a `sockaddr_storage` is large enough, and aligned, for each kind of address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(inner) };
        }
        SocketAddr::V6(v6) => {
            let inner = libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(inner) };
        }
    }
    storage
}

fn family(number: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(number).unwrap_or_default()
}

/// `None`: it is no address of the internet.
pub(crate) fn from_c(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is, and any bytes are an address.
            let v4 = unsafe { (&raw const *storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { (&raw const *storage).cast::<libc::sockaddr_in6>().read() };
            Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(v6.sin6_addr.s6_addr),
                u16::from_be(v6.sin6_port),
                u32::from_be(v6.sin6_flowinfo),
                v6.sin6_scope_id,
            )))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_went() {
        for text in ["192.0.2.1:1234", "[2001:db8::1]:65535", "[fe80::1%7]:1"] {
            let addr: SocketAddr = text.parse().expect(text);
            assert_eq!(from_c(&to_c(&addr)), Some(addr), "{text}");
        }
        // SAFETY: as in `to_c`.
        assert_eq!(from_c(&unsafe { core::mem::zeroed() }), None);
    }
}
