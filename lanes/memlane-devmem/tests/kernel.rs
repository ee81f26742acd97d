//! The kernel's own path, as far as a machine without such an interface allows: what it says to each request, and that
//! it is understood.

use memlane_devmem::error::KernelError;
use memlane_devmem::io::kernel::calls::{Calls, Real};
use memlane_devmem::io::kernel::{Bound, Interface, Missing, dma_buf, missing};
use memlane_devmem::{DeviceRegion, Range};
use memlane_sys::Errno;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

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
