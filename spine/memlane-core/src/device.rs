//! Device: the spine's one trait (SMC's `smcd_ops`, verbs' RDMA write with immediate).
//!
//! A lane asks a device what it can do ([`Caps`]); nothing asks what a device *is*.

use crate::access::SharedBytes;
use crate::region::Region;
use crate::stores::{self, StoreChoice, Stores};
use crate::token::{Grant, Rights, Token};
use memlane_sys::fd::Fd;

/// What a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Both ends can map the same memory (SMC's `support_dmb_nocopy`).
    pub attach: bool,
    /// Bytes can be copied into a peer's region.
    pub write: bool,
}

/// Why a device refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// No such token (never given, or withdrawn).
    UnknownToken,
    /// Outside the bounds or rights of the token.
    OutOfBounds,
    /// The device's table is full (SMC: `-ENOSPC`).
    Full,
    /// This device cannot do that.
    Unsupported,
    /// The kernel refused.
    Os(memlane_sys::Errno),
}

impl core::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            DeviceError::UnknownToken => f.write_str("no region goes by this token"),
            DeviceError::OutOfBounds => f.write_str("outside the bounds or rights of the token"),
            DeviceError::Full => f.write_str("the device's table of regions is full"),
            DeviceError::Unsupported => f.write_str("the device cannot do this"),
            DeviceError::Os(e) => write!(f, "the kernel refused: {e}"),
        }
    }
}

impl core::error::Error for DeviceError {}

impl From<memlane_sys::Errno> for DeviceError {
    fn from(e: memlane_sys::Errno) -> Self {
        DeviceError::Os(e)
    }
}

/// Register, attach, know, write, signal. Decision 0018 says who calls what, and what the next devices change.
pub trait Device {
    /// What it can do.
    fn caps(&self) -> Caps;

    /// Makes a region known; whoever is told the token may use it.
    fn register(&mut self, region: Region, rights: Rights) -> Result<Token, DeviceError>;

    /// Withdraws a token. The memory lives on for those who have attached it.
    fn unregister(&mut self, token: Token) -> Result<Region, DeviceError>;

    /// Maps a peer's region, named by a grant that came with its descriptor; to
    /// be written only if the grant says so.
    fn attach(&mut self, handle: Fd, grant: &Grant) -> Result<Region, DeviceError>;

    /// Makes memory of a peer's known by the token that the peer gave: `write` finds it from now on. `mapped` is the whole
    /// of what `grant` stands for, in this process; a device whose ends map the same memory needs it. A second region
    /// of the same token is refused, as one too many is: [`DeviceError::Full`].
    fn know(&mut self, grant: Grant, mapped: Option<SharedBytes>) -> Result<(), DeviceError>;

    /// Copies `bytes` to `offset` of the region named by `token`; then, if
    /// asked, signals `imm` to its owner.
    fn write(
        &mut self,
        token: Token,
        offset: usize,
        bytes: &[u8],
        signal: Option<u32>,
    ) -> Result<(), DeviceError>;

    /// Signals `imm` to the owner of the region named by `token`.
    fn signal(&mut self, token: Token, imm: u32) -> Result<(), DeviceError>;
}

/// Regions that one `Loopback` can hold (SMC's loopback: `SMC_LO_MAX_DMBS` 5000;
/// ours are chunks of 64 DMBs each).
pub const LOOPBACK_REGIONS: usize = 256;

/// A region that a device can write to.
#[derive(Debug)]
enum KnownRegion {
    /// Registered here.
    Own(Region),
    /// A peer's, or a piece of it, that somebody here has mapped.
    Peers(SharedBytes),
}

impl KnownRegion {
    fn bytes(&self) -> SharedBytes {
        match self {
            KnownRegion::Own(region) => region.bytes(),
            KnownRegion::Peers(bytes) => *bytes,
        }
    }
}

/// The loopback device: all ends are processes of this host, memory is memfds.
/// `N` regions at a time.
#[derive(Debug)]
pub struct Loopback<const N: usize = LOOPBACK_REGIONS> {
    regions: [Option<(Grant, KnownRegion)>; N],
    /// How bytes are copied into them.
    stores: StoreChoice,
    signals: u64,
    last_signal: u32,
}

impl Default for Loopback {
    fn default() -> Self {
        Loopback::empty()
    }
}

impl<const N: usize> Loopback<N> {
    /// One that holds nothing yet.
    pub const fn empty() -> Self {
        Loopback {
            regions: [const { None }; N],
            stores: StoreChoice::new(),
            signals: 0,
            last_signal: 0,
        }
    }

    /// Signals delivered so far, and the last immediate.
    pub fn signals(&self) -> (u64, u32) {
        (self.signals, self.last_signal)
    }

    #[inline]
    fn find(&self, token: Token) -> Result<usize, DeviceError> {
        let is =
            |e: &Option<(Grant, KnownRegion)>| e.as_ref().is_some_and(|(g, _)| g.token == token);
        self.regions
            .iter()
            .position(is)
            .ok_or(DeviceError::UnknownToken)
    }

    /// The window that a token names.
    pub fn window(&self, token: Token) -> Result<SharedBytes, DeviceError> {
        let at = self.find(token)?;
        match &self.regions[at] {
            Some((_, held)) => Ok(held.bytes()),
            None => Err(DeviceError::UnknownToken),
        }
    }
}

impl<const N: usize> Device for Loopback<N> {
    fn caps(&self) -> Caps {
        Caps {
            attach: true,
            write: true,
        }
    }

    fn register(&mut self, region: Region, rights: Rights) -> Result<Token, DeviceError> {
        let free = self
            .regions
            .iter()
            .position(Option::is_none)
            .ok_or(DeviceError::Full)?;
        let token = loop {
            let token = Token::fresh()?;
            if self.find(token).is_err() {
                break token;
            }
        };
        let grant = Grant {
            token,
            offset: 0,
            len: region.len(),
            rights,
        };
        self.regions[free] = Some((grant, KnownRegion::Own(region)));
        Ok(token)
    }

    fn unregister(&mut self, token: Token) -> Result<Region, DeviceError> {
        let at = self.find(token)?;
        match self.regions[at].take() {
            Some((_, KnownRegion::Own(region))) => Ok(region),
            // Not registered here: there is nothing to be given back.
            other => {
                self.regions[at] = other;
                Err(DeviceError::UnknownToken)
            }
        }
    }

    fn attach(&mut self, handle: Fd, grant: &Grant) -> Result<Region, DeviceError> {
        if grant.offset != 0 {
            return Err(DeviceError::OutOfBounds); // whole regions only
        }
        Ok(match grant.rights {
            Rights::Write => Region::attach(handle, grant.len)?,
            Rights::Read => Region::attach_read_only(handle, grant.len)?,
        })
    }

    fn know(&mut self, grant: Grant, mapped: Option<SharedBytes>) -> Result<(), DeviceError> {
        let bytes = mapped.ok_or(DeviceError::Unsupported)?;
        if grant.len != bytes.len() {
            return Err(DeviceError::OutOfBounds);
        }
        let free = self.regions.iter().position(Option::is_none);
        match (free, self.find(grant.token)) {
            (Some(free), Err(_)) => self.regions[free] = Some((grant, KnownRegion::Peers(bytes))),
            _ => return Err(DeviceError::Full),
        }
        Ok(())
    }

    #[inline]
    fn write(
        &mut self,
        token: Token,
        offset: usize,
        bytes: &[u8],
        signal: Option<u32>,
    ) -> Result<(), DeviceError> {
        let at = self.find(token)?;
        let Some((grant, held)) = &self.regions[at] else {
            return Err(DeviceError::UnknownToken);
        };
        if grant.rights != Rights::Write || !grant.covers(offset, bytes.len()) {
            return Err(DeviceError::OutOfBounds);
        }
        // SAFETY: `bytes` is readable for its length; the window checks its own bounds.
        let copy = |stores| unsafe {
            held.bytes()
                .copy_in_by(stores, offset, bytes.as_ptr(), bytes.len())
        };
        let done = match bytes.len() {
            ..stores::CHOICE_FROM => copy(Stores::Cached),
            n => self.stores.copy(n, copy),
        };
        if !done {
            return Err(DeviceError::OutOfBounds);
        }
        signal.map_or(Ok(()), |imm| self.signal(token, imm))
    }

    fn signal(&mut self, token: Token, imm: u32) -> Result<(), DeviceError> {
        self.find(token)?;
        self.signals += 1;
        self.last_signal = imm;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        Region::create(c"test", 8192, false).unwrap()
    }

    #[test]
    fn a_write_lands_where_the_token_says_and_signals_once() {
        let mut dev = Loopback::default();
        let token = dev.register(region(), Rights::Write).unwrap();
        dev.write(token, 100, b"abc", Some(7)).unwrap();
        let mut out = [0u8; 3];
        // SAFETY: three bytes are writable.
        assert!(unsafe {
            dev.window(token)
                .unwrap()
                .copy_out(100, out.as_mut_ptr(), 3)
        });
        assert_eq!((&out, dev.signals()), (b"abc", (1, 7)));
    }

    #[test]
    fn writes_outside_bounds_or_rights_or_with_a_withdrawn_token_are_refused() {
        let mut dev = Loopback::default();
        let token = dev.register(region(), Rights::Write).unwrap();
        assert_eq!(
            dev.write(token, 8190, b"abc", None),
            Err(DeviceError::OutOfBounds)
        );
        assert_eq!(
            dev.write(token, usize::MAX, b"abc", None),
            Err(DeviceError::OutOfBounds)
        );
        dev.unregister(token).unwrap();
        assert_eq!(
            dev.write(token, 0, b"abc", None),
            Err(DeviceError::UnknownToken)
        );
        let read_only = dev.register(region(), Rights::Read).unwrap();
        assert_eq!(
            dev.write(read_only, 0, b"abc", None),
            Err(DeviceError::OutOfBounds)
        );
    }

    #[test]
    fn the_257th_region_finds_the_table_full() {
        let mut dev = Loopback::default();
        for _ in 0..LOOPBACK_REGIONS {
            dev.register(region(), Rights::Write).unwrap();
        }
        assert_eq!(
            dev.register(region(), Rights::Write).unwrap_err(),
            DeviceError::Full
        );
    }

    #[test]
    fn memory_of_a_peer_s_is_written_by_the_peer_s_token_and_is_not_ours_to_withdraw() {
        let memory = region();
        let part = memory.bytes().part(4096, 1024).unwrap();
        let token = Token::from_bits(7).unwrap();
        let grant = Grant {
            token,
            offset: 4096,
            len: 1024,
            rights: Rights::Write,
        };
        let mut dev = Loopback::<1>::empty();
        assert_eq!(
            dev.know(Grant { len: 1025, ..grant }, Some(part)),
            Err(DeviceError::OutOfBounds)
        );
        assert_eq!(dev.know(grant, None), Err(DeviceError::Unsupported));
        dev.know(grant, Some(part)).unwrap();
        assert_eq!(dev.know(grant, Some(part)), Err(DeviceError::Full));
        dev.write(token, 1021, b"abc", None).unwrap();
        assert_eq!(
            dev.write(token, 1022, b"abc", None),
            Err(DeviceError::OutOfBounds)
        );
        let mut out = [0u8; 4];
        // SAFETY: four bytes are writable.
        assert!(unsafe { memory.bytes().copy_out(5117, out.as_mut_ptr(), 4) });
        assert_eq!(&out, b"abc\0");
        assert_eq!(
            dev.unregister(token).unwrap_err(),
            DeviceError::UnknownToken
        );
        dev.write(token, 0, b"still", None).unwrap();
    }
}
