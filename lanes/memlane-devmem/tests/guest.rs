//! Regions that are dma-bufs, and the kernel's own path as far as virtio goes, in a guest with Debian's 6.12: this
//! machine's kernel may have neither.
//!
//! `./dev test-kernels` runs it; without that, if the kernel is there already.
#![cfg(target_arch = "x86_64")]

use memlane_devmem::error::{KernelError, ReceiveError, RegionError};
use memlane_devmem::io::kernel::{Bound, Interface, Missing, dma_buf, missing};
use memlane_devmem::io::{Binding, Path, Stream, Terms, Wait, zcrx};
use memlane_devmem::region::Access;
use memlane_devmem::{DeviceRegion, probe};
use memlane_fixtures::guest::{self, Guest, Kernel};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const NEWER: &str = "linux-image-6.12-amd64";
/// Emulated, everything takes ten times as long.
const LIMIT: Duration = Duration::from_secs(300);

fn in_guest() -> bool {
    std::env::var_os("MEMLANE_GUEST").is_some()
}

fn region(text: &str) -> Result<DeviceRegion, RegionError> {
    DeviceRegion::create(&text.parse().unwrap())
}

// ---- what is told in the guest ----------------------------------------------

const DMA_BUFS: [&str; 2] = ["udmabuf", "dmaheap:system"];

#[test]
#[ignore = "runs in a guest: ./dev test-kernels"]
fn inside_both_kinds_are_dma_bufs_that_are_mapped() {
    if !in_guest() {
        return;
    }
    for kind in DMA_BUFS {
        let region = region(&format!("{kind}:1M")).unwrap();
        let link = format!("/proc/self/fd/{}", region.dma_buf().unwrap().as_raw_fd());
        let link = std::fs::read_link(link).unwrap();
        assert!(
            link.to_string_lossy().contains("dmabuf"),
            "{kind}: {link:?}"
        );
        region.write(4093, b"across a page").unwrap();
        let mut seen = [0; 13];
        region.read(4093, &mut seen).unwrap();
        assert_eq!(&seen, b"across a page", "{kind}");
        // The bytes are the descriptor's, not a copy beside it.
        let fd = region.dma_buf().unwrap();
        let again = memlane_sys::mem::map_shared(fd.as_raw_fd(), 0, 1 << 20, false).unwrap();
        region.cpu(Access::Read, |_| {}).unwrap();
        // SAFETY: mapped for a megabyte, and nobody writes there now.
        let byte = unsafe { again.as_ptr().add(4093).read_volatile() };
        assert_eq!(byte, b'a', "{kind}");
        // SAFETY: the mapping from above.
        unsafe { memlane_sys::mem::unmap(again, 1 << 20) };
    }
    let here = |finding: &probe::Finding| {
        let ours = finding.name == "udmabuf" || finding.name == "dmaheap:system";
        ours && finding.is_here()
    };
    assert_eq!(probe::memory().iter().filter(|one| here(one)).count(), 2);
}

#[test]
#[ignore = "runs in a guest: ./dev test-kernels"]
fn inside_limits_of_both_are_said_and_can_be_raised() {
    if !in_guest() {
        return;
    }
    let limit = "/sys/module/udmabuf/parameters/size_limit_mb";
    let before = std::fs::read_to_string(limit).unwrap();
    assert_eq!(before.trim(), "64");
    region("udmabuf:64M").unwrap();
    let refused = region("udmabuf:65M").unwrap_err();
    assert!(matches!(refused, RegionError::Missing(_)), "{refused:?}");
    assert!(refused.to_string().contains(limit), "{refused}");
    std::fs::write(limit, "80").unwrap();
    region("udmabuf:65M").unwrap();
    std::fs::write(limit, before).unwrap();
    // More than the machine has: the kernel would end processes to find it.
    let refused = region("dmaheap:system:16G").unwrap_err();
    assert!(matches!(refused, RegionError::Missing(_)), "{refused:?}");
    assert!(refused.to_string().contains("available"), "{refused}");
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn received(path: Path, kind: &str) {
    let many = 3_000_000;
    let binding = Binding::new(region(&format!("{kind}:256K")).unwrap(), 16 << 10).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let here = listener.accept().unwrap().0;
    let sender = std::thread::spawn(move || {
        let all: Vec<u8> = (0..many).map(byte).collect();
        there.write_all(&all).unwrap();
    });
    let terms = Terms {
        require: Some(path),
        ..Terms::default()
    };
    let mut stream = Stream::new(here.into(), &binding, &terms);
    let (mut total, mut fragments, mut seen) = (0, Vec::new(), Vec::new());
    loop {
        fragments.clear();
        match stream.receive(&mut fragments) {
            Ok(0) => break,
            Err(ReceiveError::WouldBlock) => {
                assert_eq!(stream.wait(Wait::Payload, LIMIT), Ok(true));
            }
            came => drop(came.unwrap()),
        }
        for fragment in &fragments {
            seen.resize(fragment.len as usize, 0);
            stream.read(fragment.token, 0, &mut seen).unwrap();
            let right = seen.iter().zip(total..).all(|(seen, at)| *seen == byte(at));
            assert!(right, "{path}, {kind}: other bytes at {total}");
            total += u64::from(fragment.len);
        }
        stream.release_all(&fragments);
    }
    sender.join().unwrap();
    assert_eq!(total, many, "{path}, {kind}");
    drop(stream);
    assert_eq!(binding.counts().free, binding.counts().chunks);
}

#[test]
#[ignore = "runs in a guest: ./dev test-kernels"]
fn inside_streams_get_into_both() {
    if !in_guest() {
        return;
    }
    for kind in DMA_BUFS {
        received(Path::Mapped, kind);
        received(Path::Staged, kind);
    }
}

/// No driver in the guest can do it: each says so, by a number that we have a sentence for, and nothing stays bound.
#[test]
#[ignore = "runs in a guest: ./dev test-kernels"]
fn inside_interfaces_refuse_real_dma_bufs_with_a_reason() {
    if !in_guest() {
        return;
    }
    for name in ["eth0", "dummy0", "lo"] {
        let interface = Interface::find(name).unwrap();
        for kind in DMA_BUFS {
            let region = region(&format!("{kind}:1M")).unwrap();
            let refused = Bound::receive(dma_buf(&region).unwrap(), &interface, &[0]);
            eprintln!("{name}, {kind}, queue 0: {}", said(&refused));
            assert!(is_explained(&refused), "{name}, {kind}: {}", said(&refused));
            let refused = Bound::receive(dma_buf(&region).unwrap(), &interface, &[99]);
            eprintln!("{name}, {kind}, queue 99: {}", said(&refused));
            assert!(is_explained(&refused), "{name}, {kind}: {}", said(&refused));
        }
        let queues = interface.queues().unwrap();
        assert!(
            queues.iter().all(|queue| queue.bound.is_none()),
            "{queues:?}"
        );
        let missing = missing(&interface);
        let texts: Vec<_> = missing.iter().map(ToString::to_string).collect();
        eprintln!("{name} lacks: {texts:#?}");
        let rings = zcrx::lacks(&interface);
        assert!(rings.len() == 1 && rings[0].contains("6.15"), "{rings:?}");
        // Before 6.13 the kernel looks at the descriptor first, so that asking with none does not tell of the driver.
        let split = |one: &Missing| matches!(one, Missing::NoSplit(_));
        assert!(missing.iter().any(split), "{name}: {texts:?}");
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    let eth0 = Interface::find("eth0").unwrap();
    for (what, refused) in [
        ("no dma-buf", Bound::receive(file.as_fd(), &eth0, &[0])),
        ("no queue", Bound::receive(file.as_fd(), &eth0, &[])),
        // Linux 6.16 has it.
        ("to send", Bound::send(file.as_fd(), &eth0)),
    ] {
        eprintln!("{what}: {}", said(&refused));
        assert!(is_explained(&refused), "{what}: {}", said(&refused));
    }
}

fn said(refused: &Result<Bound, KernelError>) -> String {
    match refused {
        Ok(bound) => format!("bound as {}", bound.id()),
        Err(why) => why.to_string(),
    }
}

/// By more than the kernel's number.
fn is_explained(refused: &Result<Bound, KernelError>) -> bool {
    let Err(error @ KernelError::Refused(why)) = refused else {
        return false;
    };
    error.to_string().len() > why.to_string().len() + "the kernel does not bind it: ".len()
}

// ---- the guest --------------------------------------------------------------

fn stripped(program: &std::path::Path, name: &str) -> PathBuf {
    let small = std::env::temp_dir().join(format!("memlane-{name}-{}", std::process::id()));
    let mut strip = Command::new("strip");
    match strip.arg("-o").args([small.as_path(), program]).status() {
        Ok(status) if status.success() => small,
        _ => program.to_owned(),
    }
}

/// Runs a script in a guest with these programs; `None`, loudly: there can be none here.
fn run(
    kernel: Result<Kernel, String>,
    programs: &[(&str, PathBuf)],
    script: &str,
) -> Option<String> {
    let kernel = match guest::qemu().and(kernel) {
        Ok(kernel) => kernel,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return None;
        }
    };
    let mut guest = Guest::new(&kernel)
        .modules(&["virtio_pci", "virtio_net", "dummy"])
        .arguments(&[
            "-netdev",
            "user,id=net,restrict=on",
            "-device",
            "virtio-net-pci,netdev=net",
        ])
        .cpus(2)
        .memory(512)
        .limit(LIMIT);
    let mut made = Vec::new();
    for (name, program) in programs {
        let small = stripped(program, name);
        guest = guest.program(&small, &format!("/bin/{name}")).unwrap();
        made.push(small);
    }
    let ended = guest.start(script).finish();
    for small in made {
        if small.starts_with(std::env::temp_dir()) {
            let _ = std::fs::remove_file(small);
        }
    }
    assert!(ended.ok, "{}", ended.console);
    Some(ended.console)
}

const STORIES: &str = "\
    ip link set lo up\n\
    chmod 1777 /tmp\n\
    MEMLANE_GUEST=1 program --ignored --test-threads=1 --nocapture inside_";

fn stories(kernel: Result<Kernel, String>) {
    if in_guest() {
        return;
    }
    let own = std::env::current_exe().unwrap();
    if let Some(console) = run(kernel, &[("program", own)], STORIES) {
        eprintln!("{console}");
        assert!(console.contains(" 4 passed"), "{console}");
    }
}

#[test]
#[ignore = "a minute: ./dev test-kernels"]
fn on_debians_newer_kernel_dma_bufs_are_regions_and_each_refusal_is_explained() {
    stories(Kernel::of_package(NEWER));
}

#[test]
fn one_guest_has_dma_bufs_as_regions() {
    stories(Kernel::of_cache(NEWER));
}

/// Two processes; what one sends, the other receives into a dma-buf, and looks at.
const NC: &str = r"
ip link set lo up
memlane devmem ls
port=5000
for region in udmabuf:32M dmaheap:system:32M; do
    for path in mapped staged; do
        port=$((port + 1))
        memlane nc -l 127.0.0.1:$port --into $region --validate 7 --require $path >/tmp/told 2>/tmp/why &
        receiver=$!
        n=0
        until grep -q listening /tmp/why; do n=$((n + 1)); test $n -lt 100; sleep 0.2; done
        memlane nc 127.0.0.1:$port --from memfd:8M --bytes 64M --validate 7 >/tmp/sent
        wait $receiver
        cat /tmp/told
        grep -q 'received .* 67108864 bytes' /tmp/told || grep -q '67108864 bytes' /tmp/told
        grep -q 'every byte' /tmp/told
        echo $region by $path is done
    done
done
";

#[test]
#[ignore = "a minute: ./dev test-kernels"]
fn on_debians_newer_kernel_nc_receives_into_dma_bufs() {
    if in_guest() {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let memlane = own.ancestors().nth(2).unwrap().join("memlane");
    if !memlane.exists() {
        return eprintln!("SKIPPED: memlane is not built: cargo build -p memlane");
    }
    let Some(console) = run(Kernel::of_package(NEWER), &[("memlane", memlane)], NC) else {
        return;
    };
    for region in ["udmabuf:32M", "dmaheap:system:32M"] {
        for path in ["mapped", "staged"] {
            let line = format!("{region} by {path} is done");
            assert!(console.contains(&line), "{console}");
        }
    }
    eprintln!("{console}");
}
