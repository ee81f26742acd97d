//! Regions of CUDA's, with a driver that is made here, and with a real one where there is one.
#![cfg(feature = "cuda")]

use memlane_devmem::cuda::driver::LIBRARY;
use memlane_devmem::cuda::{Driver, Memory};
use memlane_devmem::error::{AccessError, ReceiveError, RegionError};
use memlane_devmem::io::{Binding, Path, Stream, Terms, Wait};
use memlane_devmem::{DeviceRegion, Fragment, probe};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// A library with these properties; `None`, loudly: nothing compiles it.
struct Fake {
    path: PathBuf,
}

impl Fake {
    fn new(name: &str, properties: &[&str]) -> Option<Fake> {
        let folder = std::env::temp_dir().join(format!("memlane-fake-cuda-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{name}.so"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/cuda.c");
        let compiled = Command::new("cc")
            .args([
                "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread", "-o",
            ])
            .arg(&path)
            .arg(source)
            .args(properties)
            .output();
        match compiled {
            Err(why) => {
                eprintln!("SKIPPED: no C compiler for a driver to test with: {why}");
                None
            }
            Ok(output) => {
                assert!(output.status.success(), "{output:?}");
                Some(Fake { path })
            }
        }
    }

    fn open(&self) -> Result<&'static Driver, RegionError> {
        Driver::open(self.path.to_str().unwrap())
    }

    /// A number in the library.
    fn word(&self, name: &str) -> &'static mut i32 {
        // SAFETY: the library is open and stays so; an int of this name is there, and one test at a time uses it.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            let at: *mut i32 = *library.get(name).unwrap();
            std::mem::forget(library);
            &mut *at
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_dir(self.path.parent().unwrap());
    }
}

/// One at a time: the fakes' counts are a whole library's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (there, listener.accept().unwrap().0)
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(from: u64, count: u64) -> Vec<u8> {
    (from..from + count).map(byte).collect()
}

/// A whole sentence of why there is no CUDA.
fn no(properties: &[&str], name: &str) -> Option<String> {
    let fake = Fake::new(name, properties)?;
    let made = fake.open().and_then(|driver| Memory::new(driver, 0, 4096));
    match made.expect_err("no CUDA") {
        RegionError::Missing(why) => Some(why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_reason_for_no_cuda_is_said() {
    let _alone = alone();
    let absent = Driver::open("/nonexistent/libcuda.so.1").unwrap_err();
    let RegionError::Missing(absent) = absent else {
        panic!("{absent:?}");
    };
    assert!(absent.contains(LIBRARY), "{absent}");
    assert!(absent.contains("driver"), "{absent}");
    for (name, properties, says) in [
        ("old", "-DVERSION=10020", "CUDA 10.2"),
        ("lacking", "-DLACKING", "cuEventCreate"),
        ("none", "-DDEVICES=0", "no device"),
        ("stub", "-DINIT=34", "stub"),
        ("mismatch", "-DINIT=803", "different versions"),
        ("strange", "-DINIT=12345", "12345"),
    ] {
        let Some(why) = no(&[properties], name) else {
            return;
        };
        assert!(why.contains(says), "{name}: {why}");
        assert!(why.len() > 30, "{name}: {why}");
    }
}

#[test]
fn numbers_and_sizes_that_are_not_there_are_refused() {
    let _alone = alone();
    let Some(fake) = Fake::new("numbers", &[]) else {
        return;
    };
    let driver = fake.open().unwrap();
    assert_eq!(driver.count(), 2);
    for number in [2, u32::MAX] {
        let why = Memory::new(driver, number, 4096).unwrap_err().to_string();
        assert!(why.contains("cuda:0 to cuda:1"), "{why}");
    }
    let why = Memory::new(driver, 1, 4 << 30).unwrap_err();
    assert!(matches!(why, RegionError::Device(_)), "{why:?}");
    let why = why.to_string();
    assert!(
        why.contains("out of memory") && why.contains("cuda:1"),
        "{why}"
    );
    assert_eq!(*fake.word("fake_live"), 0);
}

#[test]
fn a_region_of_a_device_is_written_and_read_by_its_driver_alone() {
    let _alone = alone();
    let Some(fake) = Fake::new("region", &[]) else {
        return;
    };
    let memory = Memory::new(fake.open().unwrap(), 1, 5000).unwrap();
    assert_eq!(memory.device_name(), "Fake H0");
    let region = DeviceRegion::of_cuda(memory);
    assert_eq!(region.kind().to_string(), "cuda:1");
    assert_eq!(region.len(), 2 << 20, "whole pages of the device");
    assert!(!region.is_mapped());
    assert!(region.bytes().is_empty(), "nothing for the CPU");
    assert!(region.dma_buf().is_some());
    region.write(8190, b"ab").unwrap();
    let mut seen = [0; 2];
    region.read(8190, &mut seen).unwrap();
    assert_eq!(&seen, b"ab");
    let end = region.len() as u64;
    assert_eq!(region.read(end - 1, &mut seen), Err(AccessError::Outside));
    assert_eq!(region.write(u64::MAX, b"a"), Err(AccessError::Outside));
    drop(region);
    assert_eq!(*fake.word("fake_live"), 0, "handles were lost");
}

fn stretches_are_gathered(memory: &Memory) {
    let region_bytes = memory.len() as u64;
    for (at, text) in [
        (5, &b"one "[..]),
        (8190, b"piece "),
        (region_bytes - 3, b"now"),
    ] {
        // SAFETY: the text is readable for its length.
        unsafe { memory.write(at, text.as_ptr(), text.len()) }.unwrap();
    }
    let stretches = [(5, 4), (8190, 6), (region_bytes - 3, 3)];
    let gathered = memory.gathered(stretches.into_iter()).unwrap();
    assert_ne!(gathered.address(), memory.address());
    assert_eq!(gathered.number(), memory.number());
    let mut seen = [0; 13];
    gathered.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"one piece now");
    let beyond = memory.gathered([(region_bytes - 3, 4)].into_iter());
    assert_eq!(beyond.unwrap_err(), AccessError::Outside);
}

#[test]
fn stretches_of_a_device_are_gathered_by_the_device() {
    let _alone = alone();
    let Some(fake) = Fake::new("gathered", &[]) else {
        return;
    };
    let driver = fake.open().unwrap();
    stretches_are_gathered(&Memory::new(driver, 1, 4 << 20).unwrap());
    assert_eq!(*fake.word("fake_live"), 0, "handles were lost");
}

#[test]
fn without_a_dma_buf_it_is_a_region_all_the_same() {
    let _alone = alone();
    for (name, property) in [("nobuf", "-DDMA_BUF=0"), ("before", "-DOLD")] {
        let Some(fake) = Fake::new(name, &[property]) else {
            return;
        };
        let memory = Memory::new(fake.open().unwrap(), 0, 4096).unwrap();
        assert!(memory.dma_buf().unwrap_err().len() > 20);
        let region = DeviceRegion::of_cuda(memory);
        assert!(region.dma_buf().is_none());
        region.write(0, b"here").unwrap();
    }
}

/// Receives until the end, or an error; what came, looked at.
fn drain(stream: &mut Stream) -> (u64, Result<u64, ReceiveError>) {
    let (mut total, mut fragments) = (0, Vec::<Fragment>::new());
    loop {
        match stream.receive(&mut fragments) {
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            end @ (Ok(0) | Err(_)) => return (total, end),
            Ok(_) => {}
        }
        for fragment in &fragments {
            let mut seen = vec![0; fragment.len as usize];
            stream.read(fragment.token, 0, &mut seen).unwrap();
            let right = bytes(total, u64::from(fragment.len));
            assert!(seen == right, "other bytes at {total}");
            total += u64::from(fragment.len);
        }
        stream.release_all(&fragments);
        fragments.clear();
    }
}

fn receives_and_sends(region: DeviceRegion, many: u64) {
    let binding = Binding::new(region, 16 << 10).unwrap();
    let (mut there, here) = pair();
    let sender = std::thread::spawn(move || {
        let mut at = 0;
        while at < many {
            let part = many.min(at + 70_001) - at;
            there.write_all(&bytes(at, part)).unwrap();
            at += part;
        }
        there
    });
    // Nobody has to say that the CPU cannot reach it.
    let mut stream = Stream::new(here.into(), &binding, &Terms::default());
    assert_eq!(stream.path(), Path::Staged);
    let mut seen = [0; 15];
    binding.region().write(5000, b"from the device").unwrap();
    assert_eq!(stream.send(5000, 15), Ok(15));
    let end = binding.region().len() as u64;
    assert_eq!(stream.send(end - 5, 15), Err(AccessError::Outside));
    let counter = std::thread::spawn(move || {
        let mut there = sender.join().unwrap();
        there.read_exact(&mut seen).unwrap();
        seen
    });
    assert_eq!(drain(&mut stream), (many, Ok(0)));
    assert_eq!(&counter.join().unwrap(), b"from the device");
    let counts = stream.counts();
    assert_eq!((counts.received, counts.out), (many, 0));
    assert_eq!(counts.bounced, many, "once each");
    drop(stream);
    assert_eq!(binding.counts().free, binding.counts().chunks);
}

#[test]
fn a_stream_gets_into_a_device_and_out_of_it() {
    let _alone = alone();
    let Some(fake) = Fake::new("stream", &[]) else {
        return;
    };
    let memory = Memory::new(fake.open().unwrap(), 0, 1 << 20).unwrap();
    receives_and_sends(DeviceRegion::of_cuda(memory), 9_000_000);
    assert_eq!(*fake.word("fake_live"), 0, "handles were lost");
    assert!(
        *fake.word("fake_registered") > 0,
        "staging memory the device knows of"
    );
}

#[test]
fn a_copy_that_the_device_refuses_ends_the_stream_and_loses_nothing() {
    let _alone = alone();
    for (word, number) in [("fake_fail_copy", 700), ("fake_fail_wait", 719)] {
        let Some(fake) = Fake::new(word, &[]) else {
            return;
        };
        let memory = Memory::new(fake.open().unwrap(), 0, 1 << 20).unwrap();
        *fake.word(word) = 7;
        let binding = Binding::new(DeviceRegion::of_cuda(memory), 4096).unwrap();
        let (mut there, here) = pair();
        let sender = std::thread::spawn(move || there.write_all(&bytes(0, 3_000_000)));
        let mut stream = Stream::new(here.into(), &binding, &Terms::default());
        let (_, end) = drain(&mut stream);
        assert_eq!(end, Err(ReceiveError::Copy(AccessError::Cuda(number))));
        assert!(end.unwrap_err().to_string().contains(&number.to_string()));
        drop(stream);
        let _ = sender.join().unwrap();
        assert_eq!(binding.counts().free, binding.counts().chunks);
        drop(Arc::into_inner(binding).expect("nobody else has it"));
        assert_eq!(*fake.word("fake_live"), 0, "handles were lost, {word}");
    }
}

#[test]
fn this_machine_s_own_devices() {
    let found = probe::memory().into_iter();
    let cuda = found
        .filter(|finding| finding.name.starts_with("cuda:"))
        .collect::<Vec<_>>();
    assert!(!cuda.is_empty(), "it is said, also if there is none");
    let Some(here) = cuda.iter().find(|finding| finding.is_here()) else {
        return eprintln!("SKIPPED: no CUDA device: {}", cuda[0].lacks.join("; "));
    };
    let number = here.name.trim_start_matches("cuda:").parse().unwrap();
    let driver = Driver::find().unwrap();
    stretches_are_gathered(&Memory::new(driver, number, 4 << 20).unwrap());
    let spec = format!("{}:64M", here.name).parse().unwrap();
    receives_and_sends(DeviceRegion::create(&spec).unwrap(), 100_000_000);
}
