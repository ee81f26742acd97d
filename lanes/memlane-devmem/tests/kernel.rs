//! The kernel's own path, as far as a machine without such an interface allows: what it says to each request, and that
//! it is understood.

use memlane_devmem::engine::Span;
use memlane_devmem::error::{KernelError, ReceiveError};
use memlane_devmem::io::kernel::calls::{Calls, Real};
use memlane_devmem::io::kernel::{Bound, Interface, Link, Missing, dma_buf, missing};
use memlane_devmem::io::{Binding, Path, Stream, Terms, Wait};
use memlane_devmem::wire::control::{MSG_ZEROCOPY, Over, over};
use memlane_devmem::{DeviceRegion, Range};
use memlane_sys::Errno;
use memlane_sys::iov::{self, Piece};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn what_the_loopback_interface_lacks_is_said_one_by_one() {
    let Ok(lo) = Interface::find("lo") else {
        return eprintln!("SKIPPED: no loopback interface");
    };
    let missing = missing(&lo);
    eprintln!("{missing:?}");
    assert!(!missing.is_empty(), "the loopback interface cannot");
    let split = |one: &Missing| matches!(one, Missing::NoSplit(name) if name == "lo");
    assert!(missing.iter().any(split), "{missing:?}");
    for one in &missing {
        assert!(one.to_string().len() > 20);
    }
}

#[test]
fn an_interface_that_is_not_there_is_said_to_be_missing() {
    for name in ["no-such-if", "", "../lo", "."] {
        let found = Interface::find(name);
        assert_eq!(found, Err(KernelError::NoInterface(name.into())));
    }
}

#[test]
fn a_region_that_is_no_dma_buf_is_not_bound() {
    let region = DeviceRegion::create(&"memfd:1M".parse().unwrap()).unwrap();
    let refused = dma_buf(&region).unwrap_err();
    assert_eq!(refused, KernelError::NoDmaBuf);
    assert!(refused.to_string().contains("udmabuf"), "{refused}");
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (there, listener.accept().unwrap().0)
}

#[test]
fn bytes_that_no_device_has_are_in_the_caller_s_buffer() {
    let (mut there, here) = pair();
    there.write_all(b"plain").unwrap();
    let here = Real(Arc::new(here.into()));
    let (mut linear, mut told) = ([0; 100], [0; 50]);
    let came = loop {
        match here.receive(&mut linear, &mut told) {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            came => break came,
        }
    };
    // Nothing is told of plain bytes (Documentation/networking/devmem.rst).
    assert_eq!(came, Ok((5, 0)));
    assert_eq!(&linear[..5], b"plain");
    drop(there);
    assert_eq!(here.receive(&mut linear, &mut told), Ok((0, 0)));
}

/// ENOPROTOOPT: a kernel from before 6.12, or without `CONFIG_NET_DEVMEM`.
#[test]
fn tokens_that_are_not_out_free_nothing_and_too_many_ranges_are_refused() {
    let (_there, here) = pair();
    let here = Real(Arc::new(here.into()));
    let range = Range { start: 1, count: 5 };
    let freed = here.release(&[range]);
    if freed == Err(Errno(92)) {
        return eprintln!("SKIPPED: this kernel has no SO_DEVMEM_DONTNEED");
    }
    assert_eq!(freed, Ok(0));
    assert_eq!(here.release(&[range; 128]), Ok(0));
    assert_eq!(here.release(&[range; 129]), Err(Errno::INVAL));
    assert_eq!(here.release(&[]), Err(Errno::INVAL));
}

/// Over a loopback connection the kernel copies, and says so (Documentation/networking/msg_zerocopy.rst): its own words
/// of the end of sends are what we read.
#[test]
fn the_end_of_sends_without_a_copy_is_told_by_the_error_queue() {
    let (mut there, here) = pair();
    let here = Real(Arc::new(here.into()));
    here.allow_zerocopy().unwrap();
    let mut told = [0; 16];
    assert_eq!(here.errors(&mut told), Err(Errno::AGAIN));
    let mut bytes = [7; 5000];
    let piece = Piece {
        base: bytes.as_mut_ptr(),
        len: bytes.len(),
    };
    for _ in 0..2 {
        // SAFETY: bytes that stay until the peer has them.
        let sent = unsafe {
            let nothing: (&[u64], usize) = (&[], 0);
            iov::send_with_control(here.0.as_raw_fd(), &[piece], nothing, MSG_ZEROCOPY)
        };
        assert_eq!(sent, Ok(5000));
    }
    let mut seen = [0; 10_000];
    there.read_exact(&mut seen).unwrap();
    let mut found = Vec::new();
    let limit = Instant::now() + Duration::from_secs(30);
    while found.iter().map(|over: &Over| over.last + 1).max() != Some(2) {
        assert!(Instant::now() < limit, "{found:?}");
        match here.errors(&mut told) {
            Err(errno) => assert_eq!(errno, Errno::AGAIN),
            Ok(len) => {
                let text: Vec<u8> = told.iter().flat_map(|word| word.to_ne_bytes()).collect();
                found.extend(over(&text[..len]).unwrap());
            }
        }
    }
    assert_eq!(found[0].first, 0);
    assert!(found.iter().all(|over| over.copied), "{found:?}");
}

/// A binding that there is not, and a socket that was not prepared.
#[test]
fn a_send_out_of_no_binding_is_refused_and_sends_nothing() {
    let (mut there, here) = pair();
    let here = Real(Arc::new(here.into()));
    let span = Span {
        offset: 0,
        len: 100,
    };
    assert_eq!(here.send(0x7fff_fff0, &[span]), Err(Errno::INVAL));
    here.allow_zerocopy().unwrap();
    let refused = here.send(0x7fff_fff0, &[span]).unwrap_err();
    assert!([22, 19].contains(&refused.0), "{refused}");
    let binding = Binding::new(
        DeviceRegion::create(&"memfd:1M".parse().unwrap()).unwrap(),
        4096,
    );
    let link = Link {
        receive: None,
        send: Some(0x7fff_fff0),
    };
    let binding = binding.unwrap();
    let socket = here.0.try_clone().unwrap();
    let mut stream = link.stream(socket, &binding, &Terms::default()).unwrap();
    let refused = stream.send(0, 100).unwrap_err();
    assert!(
        refused.to_string().contains("from device memory"),
        "{refused}"
    );
    drop((stream, here));
    let mut seen = Vec::new();
    there.read_to_end(&mut seen).unwrap();
    assert_eq!(seen, [0; 0]);
}

/// Plain bytes of a real socket on the kernel's path: the interface did not put them on the device, and is said so.
#[test]
fn what_is_not_steered_comes_beside_the_device() {
    let (mut there, here) = pair();
    let region = DeviceRegion::create(&"memfd:1M".parse().unwrap()).unwrap();
    let binding = Binding::beside(region, 4096, 256 << 10).unwrap();
    let link = Link {
        receive: Some(7),
        send: None,
    };
    let mut stream = link
        .stream(here.into(), &binding, &Terms::default())
        .unwrap();
    there.write_all(&[5; 300_000]).unwrap();
    drop(there);
    let mut fragments = Vec::new();
    let mut seen = Vec::new();
    loop {
        match stream.receive(&mut fragments) {
            Ok(0) => break,
            Ok(_) => {}
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(
                    stream.wait(Wait::Payload, Duration::from_secs(30)),
                    Ok(true)
                );
            }
            Err(other) => panic!("{other}"),
        }
        for fragment in fragments.drain(..) {
            let at = seen.len();
            seen.resize(at + fragment.len as usize, 0);
            stream.read(fragment.token, 0, &mut seen[at..]).unwrap();
            assert!(fragment.offset >= 768 << 10, "what the interface has");
            assert_eq!(stream.release(&[fragment.into()]), Ok(1));
        }
    }
    assert!(seen == [5; 300_000]);
    let counts = stream.counts();
    assert_eq!((counts.beside, counts.bounced), (300_000, 300_000));
    drop(stream);
    assert_eq!(binding.counts().free, binding.counts().chunks);
}

#[test]
fn a_path_that_takes_more_than_a_socket_is_not_there_without_it() {
    let (_there, here) = pair();
    let region = DeviceRegion::create(&"memfd:1M".parse().unwrap()).unwrap();
    let binding = Binding::new(region, 4096).unwrap();
    let terms = Terms {
        require: Some(Path::Kernel),
        ..Terms::default()
    };
    let mut stream = Stream::new(here.into(), &binding, &terms);
    assert_eq!(stream.path(), Path::Kernel);
    let refused = stream.receive(&mut Vec::new());
    assert_eq!(refused, Err(ReceiveError::Unprepared(Path::Kernel)));
    drop(stream);
    assert_eq!(binding.counts().free, binding.counts().chunks);
}

/// What the kernel says to each request that cannot be: its number, and a sentence with what to do.
#[test]
fn each_refusal_of_the_kernel_is_understood() {
    use rustix::io::Errno as No;
    let Ok(lo) = Interface::find("lo") else {
        return eprintln!("SKIPPED: no loopback interface");
    };
    let file = std::fs::File::open("/dev/null").unwrap();
    let nowhere = Interface {
        name: "nowhere".into(),
        index: 0x7fff_ffff,
    };
    let cases = [
        (
            Bound::receive(file.as_fd(), &lo, &[0]),
            No::OPNOTSUPP,
            "driver",
        ),
        (Bound::receive(file.as_fd(), &lo, &[]), No::INVAL, "queue"),
        (
            Bound::receive(file.as_fd(), &nowhere, &[0]),
            No::NODEV,
            "interface",
        ),
        (Bound::send(file.as_fd(), &lo), No::OPNOTSUPP, "driver"),
    ];
    for (bound, errno, says) in cases {
        match bound.unwrap_err() {
            KernelError::Refused(why) if why.errno == No::PERM => {
                return eprintln!("SKIPPED: not permitted here: {why}");
            }
            // A kernel that does not know the command.
            KernelError::Refused(why) if missing_command(&lo) => eprintln!("SKIPPED: {why}"),
            KernelError::NoFamily(why) => eprintln!("SKIPPED: {why}"),
            error @ KernelError::Refused(_) => {
                let KernelError::Refused(why) = &error else {
                    continue;
                };
                assert_eq!(why.errno, errno, "{error}");
                assert!(error.to_string().contains(says), "{error}");
            }
            other => panic!("{other}"),
        }
    }
}

fn missing_command(interface: &Interface) -> bool {
    let missing = missing(interface).into_iter();
    missing
        .into_iter()
        .any(|one| matches!(one, Missing::Command(..)))
}
