//! A small Linux in QEMU, for what this machine's kernel cannot do, or what must be seen from a guest.
//!
//! Nothing is installed: the kernel and busybox come out of Debian's packages, unpacked into a folder that is kept
//! from run to run (`MEMLANE_GUEST_CACHE`, by default below the temporary folder). The guest is a kernel, an
//! initramfs made here of busybox, some modules and a script, and a serial console. It runs without KVM.
//!
//! ```no_run
//! # use memlane_fixtures::guest::{Guest, Kernel};
//! let kernel = Kernel::of_package("linux-image-amd64").expect("apt and the network");
//! let mut guest = Guest::new(&kernel).modules(&["virtio_blk", "virtio_pci"]).start("cat /proc/version");
//! let said = guest.finish();
//! assert!(said.ok, "{}", said.console);
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// No guest works longer than this, unless it is allowed to.
const LIMIT: Duration = Duration::from_secs(240);
/// What the guest says when the script has ended; the number is its exit status.
const ENDED: &str = "guest-script-ended:";

/// An unpacked kernel, and a busybox for it.
#[derive(Clone, Debug)]
pub struct Kernel {
    image: PathBuf,
    /// `lib/modules/VERSION`.
    modules: PathBuf,
    busybox: PathBuf,
}

impl Kernel {
    /// The kernel that `package` is, or depends on; fetched unless it is there from an earlier run.
    ///
    /// # Errors
    /// What is missing, to be told when the test is skipped.
    pub fn of_package(package: &str) -> Result<Kernel, String> {
        let concrete = concrete(package)?;
        Kernel::in_folders(
            &unpacked(&cache(), &concrete)?,
            &unpacked(&cache(), "busybox-static")?,
        )
    }

    /// The same, without the network: only if it is there from an earlier run.
    ///
    /// # Errors
    /// What is missing, to be told when the test is skipped.
    pub fn of_cache(package: &str) -> Result<Kernel, String> {
        let there = |name: &str| {
            let folder = cache().join(name);
            let complete = folder.join("complete").exists();
            let missing = || format!("{} is not there: ./dev test-kernels", folder.display());
            complete.then_some(folder.clone()).ok_or_else(missing)
        };
        Kernel::in_folders(&there(&concrete(package)?)?, &there("busybox-static")?)
    }

    fn in_folders(kernel: &Path, busybox: &Path) -> Result<Kernel, String> {
        let busybox = busybox.join("bin/busybox");
        let image = only(&kernel.join("boot"), "vmlinuz-")?;
        let modules = [kernel.join("lib/modules"), kernel.join("usr/lib/modules")];
        let found = modules.iter().find_map(|folder| only(folder, "").ok());
        Ok(Kernel {
            image,
            modules: found.ok_or("no modules in the package")?,
            busybox,
        })
    }
}

fn cache() -> PathBuf {
    std::env::var_os("MEMLANE_GUEST_CACHE")
        .map_or_else(|| std::env::temp_dir().join("memlane-guest"), PathBuf::from)
}

/// `linux-image-amd64` is only a name for the newest one.
fn concrete(package: &str) -> Result<String, String> {
    let said = run(Command::new("apt-cache").args(["depends", package]))?;
    let needed = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    let mut kernels = needed.filter(|name| name.starts_with("linux-image-"));
    Ok(kernels.next().unwrap_or(package).to_owned())
}

/// A package's files, in a folder of its own.
fn unpacked(cache: &Path, package: &str) -> Result<PathBuf, String> {
    let folder = cache.join(package);
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    // Somebody else may be doing the same: each in a place of its own, and the first one counts.
    let own = cache.join(format!("{package}.{}", std::process::id()));
    std::fs::create_dir_all(&own).map_err(|error| error.to_string())?;
    run(Command::new("apt-get")
        .args(["download", package])
        .current_dir(&own))?;
    let archive = only(&own, package)?;
    let tree = own.join("tree");
    run(Command::new("dpkg-deb").arg("-x").args([&archive, &tree]))?;
    std::fs::write(tree.join("complete"), "").map_err(|error| error.to_string())?;
    if std::fs::rename(&tree, &folder).is_err() && !folder.join("complete").exists() {
        return Err(format!("{} cannot be made", folder.display()));
    }
    let _ = std::fs::remove_dir_all(&own);
    Ok(folder)
}

fn only(folder: &Path, prefix: &str) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut names = entries.flatten().map(|entry| entry.path());
    let found = names.find(|path| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with(prefix))
    });
    found.ok_or_else(|| format!("no {prefix}* in {}", folder.display()))
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{command:?}: {said}"))
}

/// A guest to be started.
#[derive(Clone, Debug)]
pub struct Guest {
    kernel: Kernel,
    modules: Vec<String>,
    files: Vec<(PathBuf, String)>,
    arguments: Vec<String>,
    memory: u32,
    cpus: u32,
    reboots: bool,
    limit: Duration,
}

impl Guest {
    /// One with 256 MiB and one CPU.
    #[must_use]
    pub fn new(kernel: &Kernel) -> Guest {
        Guest {
            kernel: kernel.clone(),
            modules: Vec::new(),
            files: Vec::new(),
            arguments: Vec::new(),
            memory: 256,
            cpus: 1,
            reboots: false,
            limit: LIMIT,
        }
    }

    /// Loads these, in this order, and before each what it needs. What is built in is left out.
    #[must_use]
    pub fn modules(mut self, names: &[&str]) -> Guest {
        self.modules
            .extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    /// Puts a file of this machine (a static program, say) there.
    #[must_use]
    pub fn file(mut self, from: &Path, to: &str) -> Guest {
        self.files.push((from.to_owned(), to.to_owned()));
        self
    }

    /// Puts a program of this machine there, with the libraries that it is linked with.
    ///
    /// # Errors
    /// It is not there, or nobody can say what it is linked with.
    pub fn program(mut self, from: &Path, to: &str) -> Result<Guest, String> {
        self = self.file(from, to);
        let mut linked = Command::new("ldd");
        let said = match linked.arg(from).output() {
            // "not a dynamic executable"
            Ok(output) if !output.status.success() => return Ok(self),
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => return Err(format!("ldd: {error}")),
        };
        for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
            if !self.files.iter().any(|(_, there)| there == library) {
                self = self.file(Path::new(library), library);
            }
        }
        Ok(self)
    }

    /// Sets its memory, in MiB.
    #[must_use]
    pub fn memory(mut self, mib: u32) -> Guest {
        self.memory = mib;
        self
    }

    /// Sets how long it may work.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Guest {
        self.limit = limit;
        self
    }

    /// More for QEMU's command line.
    #[must_use]
    pub fn arguments(mut self, more: &[&str]) -> Guest {
        self.arguments
            .extend(more.iter().map(|one| (*one).to_owned()));
        self
    }

    /// Sets the number of CPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Guest {
        self.cpus = cpus;
        self
    }

    /// Lets it boot again (`reboot -f`); otherwise that is its end.
    #[must_use]
    pub fn may_reboot(mut self) -> Guest {
        self.reboots = true;
        self
    }

    /// Boots it with memory that others may map, and runs `script` in it (busybox's `sh -e`).
    ///
    /// # Panics
    /// If QEMU or a module is missing, or the initramfs cannot be written: see [`qemu`].
    #[must_use]
    pub fn start(&self, script: &str) -> Running {
        self.launch(&self.archive(Some(script), "").expect("an initramfs"))
    }

    /// Boots it from `device`, on which [`Guest::root_image`] has written a file system; what runs is there, not in
    /// the initramfs, which only loads the modules.
    ///
    /// # Panics
    /// As [`Guest::start`].
    #[must_use]
    pub fn boot(&self, device: &str) -> Running {
        let then = format!("mount -t ext4 {device} /mnt\nexec switch_root /mnt /init\n");
        self.launch(&self.archive(None, &then).expect("an initramfs"))
    }

    /// Writes a root file system (ext4) to the file `image`, as large as that is: busybox, what was added by
    /// [`Guest::file`], and `script`, which is run.
    ///
    /// # Errors
    /// No `mkfs.ext4`, or no room.
    pub fn root_image(&self, image: &Path, script: &str) -> Result<(), String> {
        let tree = image.with_extension("tree");
        let place = |to: &str| tree.join(to.trim_start_matches('/'));
        for folder in ["bin", "dev", "proc", "sys", "tmp"] {
            std::fs::create_dir_all(place(folder)).map_err(|error| error.to_string())?;
        }
        let put = |from: &Path, to: &Path| {
            std::fs::create_dir_all(to.parent().unwrap_or(to))
                .and_then(|()| std::fs::copy(from, to))
        };
        let mut files = self.files.clone();
        files.push((self.kernel.busybox.clone(), "bin/busybox".into()));
        for (from, to) in &files {
            put(from, &place(to)).map_err(|error| format!("{}: {error}", from.display()))?;
        }
        // Whoever looks at the image afterwards finds it unmounted.
        let end = "sync\nmount -o remount,ro /\n";
        let written = [
            ("init", init("", "", end)),
            ("script", format!("set -e\n{script}\n")),
        ];
        for (name, text) in written {
            let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::write(place(name), text)
                .and_then(|()| std::fs::set_permissions(place(name), runs))
                .map_err(|error| error.to_string())?;
        }
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-d"]).args([&tree, image]);
        run(&mut mkfs)?;
        std::fs::remove_dir_all(&tree).map_err(|error| error.to_string())
    }

    fn launch(&self, archive: &[u8]) -> Running {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let initramfs = std::env::temp_dir().join(format!(
            "memlane-initramfs-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::write(&initramfs, archive).expect("a written initramfs");
        let memory = format!(
            "memory-backend-memfd,id=memory,size={}M,share=on",
            self.memory
        );
        let mut child = Command::new("qemu-system-x86_64")
            .args([
                "-accel",
                "tcg",
                "-cpu",
                "max",
                "-nodefaults",
                "-display",
                "none",
            ])
            .args(["-machine", "q35,memory-backend=memory", "-object", &memory])
            .args([
                "-m",
                &self.memory.to_string(),
                "-smp",
                &self.cpus.to_string(),
            ])
            .args(["-serial", "stdio", "-monitor", "none"])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(&initramfs)
            // On a busy machine the emulated timer may be too late for the kernel's check of it, which would panic.
            .args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check"])
            .args((!self.reboots).then_some("-no-reboot"))
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("qemu-system-x86_64");
        let input = child.stdin.take().expect("a pipe");
        let (tell, heard) = channel();
        for mut from in [
            Box::new(child.stdout.take().expect("a pipe")) as Box<dyn std::io::Read + Send>,
            Box::new(child.stderr.take().expect("a pipe")),
        ] {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(n @ 1..) = from.read(&mut bytes) {
                    let _ = tell.send(bytes[..n].to_vec());
                }
            });
        }
        Running {
            child,
            input,
            heard,
            console: String::new(),
            initramfs,
            until: Instant::now() + self.limit,
        }
    }

    /// The initramfs: a folder tree in the format of cpio's "newc" (kernel's `driver-api/early-userspace/buffer-format`).
    /// Without a script, `then` is what follows the modules.
    fn archive(&self, script: Option<&str>, then: &str) -> Result<Vec<u8>, String> {
        let mut archive = Archive::default();
        for folder in ["bin", "dev", "proc", "sys", "mnt", "tmp", "modules"] {
            archive.folder(folder);
        }
        archive.file("bin/busybox", 0o755, &read(&self.kernel.busybox)?);
        let mut loading = String::new();
        for (name, path) in self.loaded()? {
            archive.file(&format!("modules/{name}.ko"), 0o644, &module(&path)?);
            loading += &format!("insmod /modules/{name}.ko\n");
        }
        for (from, to) in &self.files {
            let to = to.trim_start_matches('/');
            for (end, _) in to.match_indices('/') {
                archive.folder(&to[..end]);
            }
            archive.file(to, 0o755, &read(from)?);
        }
        if let Some(script) = script {
            archive.file("script", 0o755, format!("set -e\n{script}\n").as_bytes());
        }
        archive.file("init", 0o755, init(&loading, then, "").as_bytes());
        Ok(archive.end())
    }

    /// The modules and what they need, in the order of their loading.
    fn loaded(&self) -> Result<Vec<(String, PathBuf)>, String> {
        let mut there = BTreeMap::new();
        collect(&self.kernel.modules, &mut there);
        let builtin = std::fs::read_to_string(self.kernel.modules.join("modules.builtin"));
        let builtin: BTreeSet<String> = builtin.unwrap_or_default().lines().map(plain).collect();
        let mut order = Vec::new();
        for name in &self.modules {
            visit(&plain(name), &there, &builtin, &mut order)?;
        }
        Ok(order)
    }
}

/// The first program: prepares, runs `/script`, says how that ended, and ends the machine.
fn init(loading: &str, then: &str, end: &str) -> String {
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\nexport PATH=/bin\n\
         mount -t proc proc /proc\nmount -t sysfs sys /sys\nmount -t devtmpfs dev /dev\n\
         {loading}{then}\
         sh /script\necho {ENDED} $?\n\
         {end}poweroff -f\n"
    )
}

/// `kernel/drivers/block/virtio-blk.ko.xz` → `virtio_blk`.
fn plain(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

fn collect(folder: &Path, into: &mut BTreeMap<String, PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, into);
        } else if entry.file_name().to_string_lossy().contains(".ko") {
            into.insert(plain(&entry.file_name().to_string_lossy()), path);
        }
    }
}

fn visit(
    name: &str,
    there: &BTreeMap<String, PathBuf>,
    builtin: &BTreeSet<String>,
    order: &mut Vec<(String, PathBuf)>,
) -> Result<(), String> {
    if builtin.contains(name) || order.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let path = there.get(name).ok_or_else(|| format!("no module {name}"))?;
    for needed in needs(&module(path)?) {
        visit(&needed, there, builtin, order)?;
    }
    order.push((name.to_owned(), path.clone()));
    Ok(())
}

/// What a module says of itself, in its section `.modinfo`: `depends=a,b`.
fn needs(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|bytes| bytes == key) else {
        return Vec::new();
    };
    let list = module[at + key.len()..].split(|byte| *byte == 0).next();
    let list = String::from_utf8_lossy(list.unwrap_or_default()).into_owned();
    let names = list.split(',').filter(|name| !name.is_empty());
    names.map(plain).collect()
}

/// A module's bytes, unpacked.
fn module(path: &Path) -> Result<Vec<u8>, String> {
    let tool = match path.extension().and_then(|kind| kind.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return read(path),
    };
    let output = Command::new(tool).arg("-dc").arg(path).output();
    let output = output.map_err(|error| format!("{tool}: {error}"))?;
    Ok(output.stdout)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    number: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_owned()) {
            self.entry(name, 0o040_755, &[]);
        }
    }

    fn file(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entry(name, 0o100_000 | mode, contents);
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.number += 1;
        let (number, length, name_length) = (self.number, contents.len(), name.len() + 1);
        // Magic, inode, mode, uid, gid, links, time, size, device and special device (two each), length of the name, sum.
        let header = format!(
            "070701{number:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{length:08x}{0:08x}{0:08x}{0:08x}{0:08x}{name_length:08x}{0:08x}",
            0, 1
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// A guest that runs. Dropped, it is ended.
#[derive(Debug)]
pub struct Running {
    child: Child,
    input: ChildStdin,
    heard: Receiver<Vec<u8>>,
    console: String,
    initramfs: PathBuf,
    until: Instant,
}

/// The result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The script ended well.
    pub ok: bool,
    /// All that was on the console.
    pub console: String,
}

impl Running {
    /// Waits until the guest has said this; `false` if it ended, or took too long, without.
    pub fn hears(&mut self, what: &str) -> bool {
        while !self.console.contains(what) {
            if !self.listen() {
                return false;
            }
        }
        true
    }

    /// Types a line.
    pub fn types(&mut self, line: &str) {
        let _ = writeln!(self.input, "{line}");
        let _ = self.input.flush();
    }

    /// Waits for its end.
    pub fn finish(&mut self) -> Outcome {
        while self.listen() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
        Outcome {
            ok: self.console.contains(&format!("{ENDED} 0")),
            console: self.console.clone(),
        }
    }

    /// The console until now.
    #[must_use]
    pub fn console(&self) -> &str {
        &self.console
    }

    /// Ends it as a power cut does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Takes what comes; `false`: there is nothing more.
    fn listen(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        match self.heard.recv_timeout(left) {
            Ok(bytes) => {
                self.console += &String::from_utf8_lossy(&bytes);
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                self.console += "\n(the guest took too long)\n";
                false
            }
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(&self.initramfs);
    }
}

/// Is there a QEMU to run guests? If not, why.
///
/// # Errors
/// What is missing.
pub fn qemu() -> Result<(), String> {
    run(Command::new("qemu-system-x86_64").arg("--version")).map(drop)
}
