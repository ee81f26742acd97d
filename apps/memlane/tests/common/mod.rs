//! Hand-made stats pages, processes that hold them, and the program under test.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::CStr;
use std::fs::{self, File};
use std::mem::offset_of;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use memlane_core::stats::{
    CONN_CAPACITY, CONN_ENTRY_LEN, ConnEntry, Counter, HEADER_LEN, Header, MAGIC, MEMFD_NAME,
    PAGE_LEN, ReasonCount, VERSION,
};

/// The program under test, without settings from outside.
pub(crate) fn memlane() -> Command {
    clean(Path::new(env!("CARGO_BIN_EXE_memlane")))
}

pub(crate) fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (key, _) in std::env::vars() {
        if key.starts_with("MEMLANE_") || key == "LD_PRELOAD" {
            command.env_remove(key);
        }
    }
    command
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// An empty folder that goes away with the test.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("memlane-cli-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// The program under test in a place of its own, with no library beside it.
    pub(crate) fn memlane(&self) -> PathBuf {
        let bin = self.0.join("bin");
        fs::create_dir_all(&bin).unwrap();
        let to = bin.join("memlane");
        fs::copy(env!("CARGO_BIN_EXE_memlane"), &to).unwrap();
        // A child that another test has just forked may still hold the copy open for
        // writing, until its exec: "text file busy".
        let busy = || {
            let tried = clean(&to).arg("--version").output();
            tried.is_err_and(|e| e.kind() == std::io::ErrorKind::ExecutableFileBusy)
        };
        while busy() {
            std::thread::yield_now();
        }
        to
    }

    /// A C program or library.
    pub(crate) fn cc(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let from = self.file(&format!("{name}.c"), source, 0o644);
        let to = self.0.join(name);
        let done = Command::new("cc")
            .arg("-o")
            .arg(&to)
            .arg(&from)
            .args(flags)
            .output()
            .expect("a C compiler is needed, as for the library itself");
        assert!(done.status.success(), "{}", stderr(&done));
        to
    }

    /// A library that does nothing when it is preloaded.
    pub(crate) fn idle_library(&self) -> PathBuf {
        self.cc("idle.so", "int memlane_test_idle;\n", &["-shared", "-fPIC"])
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A stats page in a memfd, as the library would make it.
pub(crate) struct Page(pub(crate) File);

impl Page {
    pub(crate) fn new() -> Page {
        let page = Page::empty(MEMFD_NAME);
        page.0.set_len(PAGE_LEN as u64).unwrap();
        page.u32(offset_of!(Header, version), VERSION);
        page.u32(offset_of!(Header, header_len), 4096);
        page.u64(offset_of!(Header, page_len), PAGE_LEN as u64);
        page.u32(
            offset_of!(Header, conn_capacity),
            u32::try_from(CONN_CAPACITY).unwrap(),
        );
        page.u32(offset_of!(Header, conn_entry_len), 192);
        page.u64(offset_of!(Header, start_ns), 1_700_000_000_000_000_000);
        page.u64(offset_of!(Header, gid), 0x1234_5678_9abc_def0);
        page.u64(offset_of!(Header, ring_size), 262_144);
        page.u32(offset_of!(Header, spin_us), 50);
        page.u32(offset_of!(Header, upgrade), 2);
        page.u64(offset_of!(Header, magic), MAGIC);
        page
    }

    pub(crate) fn empty(name: &CStr) -> Page {
        // SAFETY: `name` is a C string; the descriptor that comes back is new and ours.
        let file = unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        };
        Page(file)
    }

    pub(crate) fn u32(&self, at: usize, value: u32) {
        self.0
            .write_all_at(&value.to_ne_bytes(), at as u64)
            .unwrap();
    }

    pub(crate) fn u64(&self, at: usize, value: u64) {
        self.0
            .write_all_at(&value.to_ne_bytes(), at as u64)
            .unwrap();
    }

    pub(crate) fn counter(&self, counter: Counter, value: u64) {
        self.u64(offset_of!(Header, counters) + 8 * counter as usize, value);
    }

    pub(crate) fn reason(&self, slot: usize, code: u32, client: u64, server: u64) {
        let at = offset_of!(Header, reasons) + slot * size_of::<ReasonCount>();
        self.u32(at, code);
        self.u64(at + offset_of!(ReasonCount, client), client);
        self.u64(at + offset_of!(ReasonCount, server), server);
    }

    /// Fills words of one entry, and counts it in.
    pub(crate) fn entry(&self, index: usize, words: &[(usize, u32)], longs: &[(usize, u64)]) {
        let at = HEADER_LEN + index * CONN_ENTRY_LEN;
        for (offset, value) in words {
            self.u32(at + offset, *value);
        }
        for (offset, value) in longs {
            self.u64(at + offset, *value);
        }
        self.u32(
            offset_of!(Header, conn_high),
            u32::try_from(index).unwrap() + 1,
        );
    }

    /// Addresses of one entry, in IPv6 form.
    pub(crate) fn addresses(&self, index: usize, local: (&str, u16), peer: (&str, u16)) {
        let at = HEADER_LEN + index * CONN_ENTRY_LEN;
        let ports = u32::from(local.1) | (u32::from(peer.1) << 16);
        self.u32(at + offset_of!(ConnEntry, ports), ports);
        for (offset, ip) in [
            (offset_of!(ConnEntry, local_ip), local.0),
            (offset_of!(ConnEntry, remote_ip), peer.0),
        ] {
            let ip: std::net::Ipv6Addr = ip.parse().unwrap();
            self.0
                .write_all_at(&ip.octets(), (at + offset) as u64)
                .unwrap();
        }
    }
}

/// A process that holds a page as its stderr, until it is dropped.
pub(crate) struct Holder(Child);

impl Holder {
    pub(crate) fn new(page: &Page) -> Holder {
        let holder = Holder::of(page, Stdio::null());
        page.u32(offset_of!(Header, pid), holder.pid());
        holder
    }

    /// Holds the page without being the process that it names.
    pub(crate) fn of(page: &Page, stdin: Stdio) -> Holder {
        let child = Command::new("sleep")
            .arg("600")
            .stdin(stdin)
            .stdout(Stdio::null())
            .stderr(Stdio::from(page.0.try_clone().unwrap()))
            .spawn()
            .unwrap();
        Holder(child)
    }

    /// `command` is sleep, as another user perhaps.
    pub(crate) fn by(command: &mut Command, page: &Page) -> Holder {
        let child = command
            .arg("600")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(page.0.try_clone().unwrap()))
            .spawn()
            .unwrap();
        page.u32(offset_of!(Header, pid), child.id());
        Holder(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Text with what changes from run to run replaced, and nothing that only looks like it.
pub(crate) fn settled(text: &str, pid: u32) -> String {
    let version = concat!("\"version\": \"", env!("CARGO_PKG_VERSION"), "\"");
    text.replace(&format!("\"pid\": {pid},"), "\"pid\": PID,")
        .replace(&format!("sleep/{pid} "), "sleep/PID ")
        .replace(version, "\"version\": \"VERSION\"")
}

/// The same for a table, with runs of blanks squeezed: the width of a column depends on the process id.
pub(crate) fn squeezed(text: &str, pid: u32) -> String {
    let lines = text.lines().map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        words.join(" ") + "\n"
    });
    settled(&lines.collect::<String>(), pid)
}

/// Compares with a golden file; MEMLANE_TEST_BLESS=1 writes it instead.
pub(crate) fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("MEMLANE_TEST_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(golden, text, "{} differs", path.display());
}
