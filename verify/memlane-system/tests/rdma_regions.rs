//! Volumes read over RDMA straight into regions: memory of this process, huge pages, dma-bufs, and a GPU's.
//!
//! rxe registers no dma-bufs, and a guest has no GPU. So a library of the test's own takes libibverbs' place, which registers
//! them, and another one CUDA's. `./dev test-kernels` runs all stories.
#![cfg(target_arch = "x86_64")]

mod rdma;

use std::path::{Path, PathBuf};
use std::process::Command;

use memlane_system::blocks::must;
use memlane_system::harness::TempDir;
use rdma::{assert_well, device, guest, kernel};

const REAL: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn compile(into: &Path, arguments: &[&str], sources: &[PathBuf]) {
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .arg(into)
        .args(arguments)
        .args(sources);
    must(cc);
}

/// `libcuda.so.1`, and `libibverbs.so.1` that registers dma-bufs; `None`: something is missing here, which is said.
fn libraries(test: &str, folder: &Path) -> Option<[PathBuf; 2]> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("SKIPPED {test}: install libibverbs-dev");
        return None;
    }
    let [cuda, verbs] = ["libcuda.so.1", "libibverbs.so.1"].map(|name| folder.join(name));
    let fake = source("../../lanes/memlane-devmem/tests/fake/cuda.c");
    compile(&cuda, &[], &[fake]);
    // A library is needed by the name that it says it has: this one says that it has the real one's path.
    let stub = folder.join("stub.so");
    compile(&stub, &[&format!("-Wl,-soname,{REAL}")], &[]);
    let own = source("tests/rdma/dma_buf.c");
    compile(&verbs, &["-Wl,--no-as-needed"], &[own, stub]);
    Some([cuda, verbs])
}

/// `reads REGION PATH`: all of the volume comes into the region by this path, and without a copy; `detours REGION WHY`: by a copy, for
/// this reason, and not if none may be.
const WORDS: &str = r#"
dd if=/dev/urandom of=/vols/disk bs=1M count=8 2>/dev/null
memlane serve --root /vols --listen rdma://192.0.2.1 --insecure --queue-depth 64 2>/tmp/serve.log &
until grep -q serving /tmp/serve.log; do sleep 1; done
read_into() {
    memlane vol read rdma://192.0.2.1 disk --into "$@" --json --output /tmp/out >/tmp/said 2>/tmp/warned
}
shows() {
    cat /tmp/said /tmp/warned
    exit 1
}
reads() {
    read_into $1 --require direct || shows
    cmp /tmp/out /vols/disk
    grep -q '"bounced_per_byte": *0.0' /tmp/said || shows
    ! grep -q detour /tmp/said || shows
    echo "$1: straight"
}
detours() {
    read_into $1 || shows
    cmp /tmp/out /vols/disk
    grep -q '"path": *"direct"' /tmp/said || shows
    grep -q '"bounced_per_byte": *1.0' /tmp/said || shows
    grep -q "\"detour\": *\"$2" /tmp/said || shows
    if read_into $1 --require direct; then shows; fi
    grep -q "$2" /tmp/warned || shows
    echo "$1: $2"
}
"#;

fn told(test: &str, story: &str) {
    let folder = TempDir::new(test);
    let Some(kernel) = kernel(test, &[]) else {
        return;
    };
    let Some([cuda, verbs]) = libraries(test, folder.path()) else {
        return;
    };
    let guest = guest(&kernel, &[], folder.path())
        .expect("programs of this machine")
        .file(&cuda, "/cuda/libcuda.so.1")
        .file(&verbs, "/dma-bufs/libibverbs.so.1");
    let outcome = guest.start(&format!("{}{WORDS}{story}", device())).finish();
    assert_well(&outcome);
    println!("{}", outcome.console);
}

/// What is mapped is registered where it is mapped, if not as a dma-buf. The pages of a heap cannot be.
const MAPPED: &str = r#"
reads memfd:4M
echo 2 >/proc/sys/vm/nr_hugepages
reads hugetlb:4M
reads udmabuf:4M
detours dmaheap:system:4M "the RDMA device's driver registers no dma-bufs"
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn a_volume_is_read_straight_into_regions_that_are_mapped() {
    told("rdma-regions", MAPPED);
}

const OF_A_GPU: &str = r#"
export LD_LIBRARY_PATH=/cuda
detours cuda:0:4M "the RDMA device's driver registers no dma-bufs"
export LD_LIBRARY_PATH=/cuda:/dma-bufs
reads cuda:0:4M
"#;

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn a_volume_is_read_straight_into_a_gpus_memory_by_a_device_that_reaches_it_and_else_by_a_copy() {
    told("rdma-gpu", OF_A_GPU);
}
