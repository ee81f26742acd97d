//! What every device must do, as one suite over `impl Device`. A new device
//! adds a [`Rig`] and one test; the suite asks [`Device::caps`], never which
//! device it is.

use memlane_core::device::{Caps, Device, DeviceError, LOOPBACK_REGIONS, Loopback};
use memlane_core::region::Region;
use memlane_core::token::{Grant, Rights, Token};
use memlane_sys::fd::Fd;
use memlane_sys::mem::memfd;

const LEN: usize = 8192;

/// Two ends of one kind of device, and what the suite cannot ask the trait.
trait Rig {
    type Dev: Device;
    fn end() -> Self::Dev;
    /// Signals that the owner has got, and the last one.
    fn signals(dev: &Self::Dev) -> (u64, u32);
    /// Regions that one device can hold.
    const CAPACITY: usize;
}

struct LoopbackRig;

impl Rig for LoopbackRig {
    type Dev = Loopback;
    fn end() -> Loopback {
        Loopback::default()
    }
    fn signals(dev: &Loopback) -> (u64, u32) {
        dev.signals()
    }
    const CAPACITY: usize = LOOPBACK_REGIONS;
}

fn region() -> Region {
    Region::create(c"conformance", LEN, false).unwrap()
}

/// A region and a descriptor of it to hand over.
fn region_with_handle() -> (Region, Fd) {
    let mut region = region();
    let handle = region.take_fd().unwrap();
    (region, handle)
}

fn read(region: &Region, at: usize, n: usize) -> Vec<u8> {
    let mut out = vec![0; n];
    // SAFETY: `out` is writable for `n` bytes.
    assert!(unsafe { region.bytes().copy_out(at, out.as_mut_ptr(), n) });
    out
}

fn poke(region: &Region, at: usize, bytes: &[u8]) {
    // SAFETY: `bytes` is readable for its length.
    assert!(unsafe { region.bytes().copy_in(at, bytes.as_ptr(), bytes.len()) });
}

fn grant(token: Token) -> Grant {
    Grant {
        token,
        offset: 0,
        len: LEN,
        rights: Rights::Write,
    }
}

fn unknown() -> Token {
    Token::fresh().unwrap()
}

// ---- the suite ----

fn conforms<R: Rig>() {
    every_registration_has_a_token_of_its_own::<R>();
    a_token_is_good_until_it_is_withdrawn_and_only_there::<R>();
    signals_arrive_once_and_only_when_asked_for::<R>();
    a_full_table_says_so_and_has_room_again_later::<R>();
    let Caps { attach, write } = R::end().caps();
    if attach {
        both_ends_of_an_attached_region_see_the_same_bytes::<R>();
        attached_memory_outlives_its_registration::<R>();
        if write {
            attached_memory_that_is_known_is_written_by_its_owner_s_token::<R>();
        }
        a_grant_to_read_gives_memory_that_cannot_be_written::<R>();
        what_is_not_what_the_grant_says_cannot_be_attached::<R>();
    } else {
        let (region, handle) = region_with_handle();
        let mut dev = R::end();
        let token = dev.register(region, Rights::Write).unwrap();
        assert_eq!(
            R::end().attach(handle, &grant(token)).err(),
            Some(DeviceError::Unsupported)
        );
    }
    if write {
        a_write_changes_exactly_its_bytes::<R>();
        a_write_that_is_refused_changes_and_signals_nothing::<R>();
    } else {
        let mut dev = R::end();
        let token = dev.register(region(), Rights::Write).unwrap();
        assert_eq!(
            dev.write(token, 0, b"x", None),
            Err(DeviceError::Unsupported)
        );
    }
}

fn every_registration_has_a_token_of_its_own<R: Rig>() {
    let mut dev = R::end();
    let mut tokens: Vec<u64> = (0..50)
        .map(|_| dev.register(region(), Rights::Write).unwrap().bits())
        .collect();
    let again = dev
        .unregister(Token::from_bits(tokens[7]).unwrap())
        .unwrap();
    tokens.push(dev.register(again, Rights::Write).unwrap().bits());
    assert!(!tokens.contains(&0));
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 51, "a token was given twice");
}

fn a_token_is_good_until_it_is_withdrawn_and_only_there<R: Rig>() {
    let (mut owner, mut other) = (R::end(), R::end());
    let token = owner.register(region(), Rights::Write).unwrap();
    for (dev, token) in [(&mut owner, unknown()), (&mut other, token)] {
        assert_eq!(dev.signal(token, 1), Err(DeviceError::UnknownToken));
        assert_eq!(dev.unregister(token).err(), Some(DeviceError::UnknownToken));
    }
    assert_eq!(owner.signal(token, 1), Ok(()));
    assert_eq!(owner.unregister(token).unwrap().len(), LEN);
    assert_eq!(owner.signal(token, 1), Err(DeviceError::UnknownToken));
    assert_eq!(
        owner.unregister(token).err(),
        Some(DeviceError::UnknownToken)
    );
}

fn signals_arrive_once_and_only_when_asked_for<R: Rig>() {
    let mut dev = R::end();
    let token = dev.register(region(), Rights::Write).unwrap();
    assert_eq!(R::signals(&dev).0, 0);
    dev.signal(token, 0xdead_beef).unwrap();
    assert_eq!(R::signals(&dev), (1, 0xdead_beef));
    if dev.caps().write {
        dev.write(token, 0, b"quiet", None).unwrap();
        assert_eq!(R::signals(&dev), (1, 0xdead_beef));
        dev.write(token, 0, b"loud", Some(0)).unwrap();
        assert_eq!(R::signals(&dev), (2, 0));
    }
}

fn a_full_table_says_so_and_has_room_again_later<R: Rig>() {
    let mut dev = R::end();
    let tokens: Vec<Token> = (0..R::CAPACITY)
        .map(|_| dev.register(region(), Rights::Write).unwrap())
        .collect();
    assert_eq!(
        dev.register(region(), Rights::Write).err(),
        Some(DeviceError::Full)
    );
    dev.unregister(tokens[R::CAPACITY / 2]).unwrap();
    assert!(dev.register(region(), Rights::Write).is_ok());
    assert_eq!(
        dev.signal(tokens[0], 1),
        Ok(()),
        "the others are as they were"
    );
}

fn both_ends_of_an_attached_region_see_the_same_bytes<R: Rig>() {
    let (mut owner, mut peer) = (R::end(), R::end());
    let (region, handle) = region_with_handle();
    let token = owner.register(region, Rights::Write).unwrap();
    let theirs = peer.attach(handle, &grant(token)).unwrap();
    assert_eq!(theirs.len(), LEN);
    poke(&theirs, LEN - 4, b"tail");
    if owner.caps().write {
        owner.write(token, 10, b"from the owner", None).unwrap();
        assert_eq!(read(&theirs, 10, 14), b"from the owner");
    }
    let ours = owner.unregister(token).unwrap();
    assert_eq!(read(&ours, LEN - 4, 4), b"tail");
    poke(&ours, 0, b"still shared");
    assert_eq!(read(&theirs, 0, 12), b"still shared");
}

fn a_grant_to_read_gives_memory_that_cannot_be_written<R: Rig>() {
    let (mut owner, mut peer) = (R::end(), R::end());
    let (region, handle) = region_with_handle();
    poke(&region, 0, b"look");
    let token = owner.register(region, Rights::Read).unwrap();
    let read_only = Grant {
        rights: Rights::Read,
        ..grant(token)
    };
    let theirs = peer.attach(handle, &read_only).unwrap();
    assert_eq!(read(&theirs, 0, 4), b"look");
    // SAFETY: the source is four bytes long.
    assert!(!unsafe { theirs.bytes().copy_in(0, b"mine".as_ptr(), 4) });
    assert_eq!(read(&owner.unregister(token).unwrap(), 0, 4), b"look");
}

fn attached_memory_outlives_its_registration<R: Rig>() {
    let (mut owner, mut peer) = (R::end(), R::end());
    let (region, handle) = region_with_handle();
    poke(&region, 0, b"kept");
    let token = owner.register(region, Rights::Write).unwrap();
    let theirs = peer.attach(handle, &grant(token)).unwrap();
    drop(owner.unregister(token).unwrap());
    drop((owner, peer));
    assert_eq!(read(&theirs, 0, 4), b"kept");
}

fn attached_memory_that_is_known_is_written_by_its_owner_s_token<R: Rig>() {
    let (mut owner, mut peer) = (R::end(), R::end());
    let (region, handle) = region_with_handle();
    let token = owner.register(region, Rights::Write).unwrap();
    let theirs = peer.attach(handle, &grant(token)).unwrap();
    assert_eq!(
        peer.write(token, 0, b"early", None),
        Err(DeviceError::UnknownToken)
    );
    let short = Grant {
        len: LEN - 1,
        ..grant(token)
    };
    let window = Some(theirs.bytes());
    assert_eq!(peer.know(short, window), Err(DeviceError::OutOfBounds));
    peer.know(grant(token), window).unwrap();
    assert_eq!(peer.know(grant(token), window), Err(DeviceError::Full));
    peer.write(token, LEN - 5, b"known", None).unwrap();
    assert_eq!(
        peer.write(token, LEN - 4, b"known", None),
        Err(DeviceError::OutOfBounds)
    );
    let region = owner.unregister(token).unwrap();
    assert_eq!(read(&region, LEN - 5, 5), b"known");
}

fn what_is_not_what_the_grant_says_cannot_be_attached<R: Rig>() {
    let mut peer = R::end();
    let token = unknown();
    for (offset, len) in [
        (0, LEN / 2),
        (0, LEN * 2),
        (0, 0),
        (4096, LEN),
        (4096, LEN - 4096),
        (usize::MAX, LEN),
    ] {
        let wrong = Grant {
            token,
            offset,
            len,
            rights: Rights::Write,
        };
        let (_owner, handle) = region_with_handle();
        assert!(
            peer.attach(handle, &wrong).is_err(),
            "offset {offset} len {len}"
        );
    }
    let unsealed = memfd(c"unsealed", LEN, false).unwrap();
    assert!(
        peer.attach(unsealed, &grant(token)).is_err(),
        "its owner could pull its pages away"
    );
    let pipe = std::os::fd::IntoRawFd::into_raw_fd(std::io::pipe().unwrap().0);
    // SAFETY: into_raw_fd gave the ownership to us.
    let pipe = unsafe { Fd::from_raw(pipe) };
    assert!(
        peer.attach(pipe, &grant(token)).is_err(),
        "not memory at all"
    );
}

fn a_write_changes_exactly_its_bytes<R: Rig>() {
    let mut dev = R::end();
    let token = dev.register(region(), Rights::Write).unwrap();
    let mut want = vec![0u8; LEN];
    for (at, len, fill) in [
        (0, 1, 1u8),
        (LEN - 1, 1, 2),
        (100, 33, 3),
        (4090, 12, 4),
        (5000, 0, 5),
        (LEN, 0, 6),
    ] {
        dev.write(token, at, &vec![fill; len], None).unwrap();
        want[at..at + len].fill(fill);
    }
    let region = dev.unregister(token).unwrap();
    assert_eq!(read(&region, 0, LEN), want);
}

fn a_write_that_is_refused_changes_and_signals_nothing<R: Rig>() {
    let mut dev = R::end();
    let token = dev.register(region(), Rights::Write).unwrap();
    for (at, len) in [
        (LEN, 1),
        (LEN - 1, 2),
        (0, LEN + 1),
        (LEN + 1, 0),
        (usize::MAX, 1),
        (usize::MAX, 0),
    ] {
        let refused = dev.write(token, at, &vec![9; len], Some(9));
        assert_eq!(
            refused,
            Err(DeviceError::OutOfBounds),
            "{len} bytes at {at}"
        );
    }
    let read_only = dev.register(region(), Rights::Read).unwrap();
    assert_eq!(
        dev.write(read_only, 0, b"no", Some(9)),
        Err(DeviceError::OutOfBounds)
    );
    assert_eq!(
        dev.write(unknown(), 0, b"no", Some(9)),
        Err(DeviceError::UnknownToken)
    );
    assert_eq!(R::signals(&dev).0, 0);
    for token in [token, read_only] {
        let region = dev.unregister(token).unwrap();
        assert!(read(&region, 0, LEN).iter().all(|b| *b == 0));
    }
}

// ---- the devices ----

#[test]
fn the_loopback_device_conforms() {
    assert_eq!(
        Loopback::default().caps(),
        Caps {
            attach: true,
            write: true
        }
    );
    conforms::<LoopbackRig>();
}
