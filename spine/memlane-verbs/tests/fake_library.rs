//! What is asked of rdma-core, by a library of the test's own that makes objects of a device that is not there.

use memlane_core::access::SharedBytes;
use memlane_core::region::Region;
use memlane_verbs::{Capacity, Domain, Id, Pair, Registration, Verbs, VerbsError};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What a test has of a library: its functions, and the variables that they write.
struct Fake {
    verbs: &'static Verbs,
    library: libloading::Library,
    _alone: MutexGuard<'static, ()>,
}

/// Builds the library; `None`: nothing here compiles it. Tests of one library take turns.
fn fake(name: &str, properties: &[&str]) -> Option<Fake> {
    static TURN: Mutex<()> = Mutex::new(());
    let alone = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        println!("SKIPPED: install libibverbs-dev and librdmacm-dev");
        return None;
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/rdma.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .args([&file, &source])
        .args(properties);
    let output = cc.output().expect("a C compiler");
    assert!(output.status.success(), "{output:?}");
    let path = file.to_str().expect("a plain path");
    Some(Fake {
        verbs: Verbs::open(&[path, path]).expect("all functions"),
        // SAFETY: it was just made, and does nothing when it is loaded.
        library: unsafe { libloading::Library::new(&file) }.expect("the library"),
        _alone: alone,
    })
}

impl Fake {
    fn variable<T: Copy>(&self, name: &str) -> *mut T {
        // SAFETY: a variable of this type, as the C file says.
        let symbol = unsafe { self.library.get::<*mut T>(name) };
        *symbol.expect("a variable")
    }

    fn said<T: Copy>(&self, name: &str) -> T {
        // SAFETY: as above; nobody writes it meanwhile, because tests take turns.
        unsafe { self.variable::<T>(name).read() }
    }

    fn refuses(&self, errno: i32) {
        // SAFETY: as above.
        unsafe { self.variable::<i32>("refuses").write(errno) };
    }

    fn id(&self) -> Arc<Id> {
        let id = Id::new(self.verbs).expect("an id");
        let to = "192.0.2.1:1".parse().expect("an address");
        id.resolve(None, &to, Duration::from_secs(1))
            .expect("a device");
        Arc::new(id)
    }

    fn domain(&self) -> Arc<Domain> {
        Domain::new(&self.id()).expect("a domain")
    }
}

const LEN: usize = 16384;
const NAMED: u64 = 0x7000_0000;

fn memory() -> Region {
    Region::create(c"test", LEN, false).expect("memory")
}

fn nothing() -> SharedBytes {
    // SAFETY: no bytes.
    unsafe { SharedBytes::new(NonNull::dangling(), 0) }
}

/// A memfd stands for the dma-buf: it is only passed on.
fn registered(
    domain: &Arc<Domain>,
    region: &Region,
    mapped: SharedBytes,
) -> Result<Registration, VerbsError> {
    // SAFETY: open as long as the region is.
    let fd = unsafe { BorrowedFd::borrow_raw(region.fd().expect("a descriptor")) };
    // SAFETY: tests keep the region longer than the registration.
    unsafe { domain.register_dma_buf(fd, LEN, mapped, NAMED, Arc::new(())) }
}

#[test]
fn a_dma_buf_is_registered_as_a_whole_under_its_name_until_the_registration_is_dropped() {
    let Some(fake) = fake("dma-buf", &[]) else {
        return;
    };
    let (domain, region) = (fake.domain(), memory());
    let registration = registered(&domain, &region, nothing()).expect("a registration");
    assert_eq!(
        fake.said::<i32>("asked_fd"),
        region.fd().expect("a descriptor")
    );
    assert_eq!(fake.said::<u64>("asked_offset"), 0);
    assert_eq!(fake.said::<u64>("asked_length"), LEN as u64);
    assert_eq!(fake.said::<u64>("asked_name"), NAMED);
    assert_eq!(
        fake.said::<i32>("asked_access"),
        3,
        "local and remote write"
    );
    assert_eq!(registration.name_at(4096, 100), Some(NAMED + 4096));
    assert_eq!(
        registration.name_at(LEN - 1, 1),
        Some(NAMED + LEN as u64 - 1)
    );
    assert_eq!(registration.name_at(LEN - 1, 2), None);
    assert_eq!(registration.name_at(usize::MAX, 2), None);
    assert_eq!(
        registration.name(&region.bytes()),
        None,
        "it is not said to be mapped"
    );
    assert_eq!(fake.said::<i32>("regions"), 1);
    drop(registration);
    assert_eq!(fake.said::<i32>("regions"), 0);
}

#[test]
fn a_dma_buf_that_is_mapped_is_found_by_its_bytes_too() {
    let Some(fake) = fake("mapped", &[]) else {
        return;
    };
    let (domain, region) = (fake.domain(), memory());
    let registration = registered(&domain, &region, region.bytes()).expect("a registration");
    let part = region.bytes().part(8192, 512).expect("a part");
    assert_eq!(registration.name(&part), Some(NAMED + 8192));
    assert_eq!(
        registration.piece(&part).map(|piece| piece.len()),
        Some(512)
    );
}

#[test]
fn a_driver_that_refuses_a_dma_buf_and_a_library_that_knows_none_are_told_apart() {
    let Some(fake) = fake("refuses", &[]) else {
        return;
    };
    let region = memory();
    fake.refuses(libc::EOPNOTSUPP);
    let refused = registered(&fake.domain(), &region, nothing()).expect_err("a refusal");
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    assert!(
        refused.to_string().starts_with("ibv_reg_dmabuf_mr: "),
        "{refused}"
    );
    drop(fake);

    let old = self::fake("old", &["-DWITHOUT_DMA_BUFS"]).expect("as above");
    let missing = registered(&old.domain(), &region, nothing()).expect_err("a refusal");
    assert!(
        missing.to_string().contains("install rdma-core 34"),
        "{missing}"
    );
}

#[test]
fn queue_pairs_share_the_completion_vectors_of_their_device() {
    let Some(fake) = fake("vectors", &[]) else {
        return;
    };
    let capacity = Capacity {
        sends: 1,
        receives: 1,
        inline: 0,
    };
    let pair = || {
        let id = fake.id();
        let domain = Domain::new(&id).expect("a domain");
        Pair::new(&id, &domain, capacity).expect("a queue pair")
    };
    let pairs: Vec<Pair> = (0..4).map(|_| pair()).collect();
    assert_eq!(fake.said::<u32>("asked_vectors"), 0b1111);
    let channels: std::collections::BTreeSet<_> = pairs
        .iter()
        .map(|pair| pair.channel().as_raw_fd())
        .collect();
    assert_eq!(channels.len(), 4);
}
