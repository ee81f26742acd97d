//! A small Linux in QEMU, for what this machine's kernel cannot do, or what must be seen from a guest.
//!
//! Nothing is installed: the kernel and busybox come out of Debian's packages, unpacked into a folder that is kept
//! from run to run (`MEMLANE_GUEST_CACHE`, by default below the temporary folder). The guest is a kernel, an
//! initramfs made here of busybox, some modules and a script, and a serial console. It runs without KVM.
//!
//! ```no_run
//! # use memlane_guest::{Guest, Kernel};
//! let kernel = Kernel::of_package("linux-image-amd64").expect("apt and the network");
//! let mut guest = Guest::new(&kernel).modules(&["virtio_blk", "virtio_pci"]).start("cat /proc/version");
//! let said = guest.finish();
//! assert!(said.ok, "{}", said.console);
//! ```
//!
//! | room | what |
//! |---|---|
//! | `kernel` | Debian's kernels, and their modules |
//! | `archive` | the initramfs |
//! | `running` | the console of a guest that runs |

mod archive;
mod kernel;
mod running;
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use archive::Archive;
use running::ENDED;
use tools::{read, run};

pub use kernel::{Kernel, files_of};
pub use running::{Heard, Outcome, Running};

/// No guest works longer than this, unless it is allowed to.
const LIMIT: Duration = Duration::from_secs(240);

/// A guest to be started.
#[derive(Clone, Debug)]
pub struct Guest {
    kernel: Kernel,
    modules: Vec<String>,
    cpu: String,
    told: String,
    prepare: fn(&mut Command),
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
            cpu: "max".into(),
            told: String::new(),
            prepare: |_| (),
            files: Vec::new(),
            arguments: Vec::new(),
            memory: 256,
            cpus: 1,
            reboots: false,
            limit: LIMIT,
        }
    }

    /// Sets QEMU's model of the CPU; without it, that is `max`, all that QEMU can do.
    #[must_use]
    pub fn cpu(mut self, model: &str) -> Guest {
        model.clone_into(&mut self.cpu);
        self
    }

    /// More for the kernel's command line.
    #[must_use]
    pub fn tells_the_kernel(mut self, words: &str) -> Guest {
        words.clone_into(&mut self.told);
        self
    }

    /// Has QEMU's command changed before it is started: to end with its parent, say.
    #[must_use]
    pub fn prepared(mut self, prepare: fn(&mut Command)) -> Guest {
        self.prepare = prepare;
        self
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
    /// If it cannot be started: see [`Guest::try_start`].
    #[must_use]
    pub fn start(&self, script: &str) -> Running {
        self.try_start(script).expect("a guest")
    }

    /// The same where a caller can go on without a guest.
    ///
    /// # Errors
    /// QEMU, a module or a file is missing (see also [`qemu`]), or the initramfs cannot be written.
    pub fn try_start(&self, script: &str) -> Result<Running, String> {
        self.launch(&self.archive(Some(script), "")?)
    }

    /// Boots it from `device`, on which [`Guest::root_image`] has written a file system; what runs is there, not in
    /// the initramfs, which only loads the modules.
    ///
    /// # Panics
    /// As [`Guest::start`].
    #[must_use]
    pub fn boot(&self, device: &str) -> Running {
        let then = format!("mount -t ext4 {device} /mnt\nexec switch_root /mnt /init\n");
        let archive = self.archive(None, &then).expect("an initramfs");
        self.launch(&archive).expect("a guest")
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
        files.push((self.kernel.busybox().to_owned(), "bin/busybox".into()));
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

    fn launch(&self, archive: &[u8]) -> Result<Running, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let initramfs = std::env::temp_dir().join(format!(
            "memlane-initramfs-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::write(&initramfs, archive)
            .map_err(|error| format!("{}: {error}", initramfs.display()))?;
        let mut command = self.command(&initramfs);
        let child = command.spawn().map_err(|error| {
            let _ = std::fs::remove_file(&initramfs);
            format!("qemu-system-x86_64: {error}")
        })?;
        Ok(Running::new(child, initramfs, self.limit))
    }

    fn command(&self, initramfs: &Path) -> Command {
        let size = self.memory;
        let memory = format!("memory-backend-memfd,id=memory,size={size}M,share=on");
        // On a busy machine the emulated timer may be too late for the kernel's check of it, which would panic.
        let told = "console=ttyS0 quiet panic=-1 no_timer_check";
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-accel", "tcg", "-cpu", &self.cpu, "-nodefaults"])
            .args(["-display", "none", "-serial", "stdio", "-monitor", "none"])
            .args(["-machine", "q35,memory-backend=memory", "-object", &memory])
            .args(["-m", &size.to_string(), "-smp", &self.cpus.to_string()])
            .arg("-kernel")
            .arg(self.kernel.image())
            .arg("-initrd")
            .arg(initramfs)
            .args(["-append", &format!("{told} {}", self.told)])
            .args((!self.reboots).then_some("-no-reboot"))
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        (self.prepare)(&mut command);
        command
    }

    /// The initramfs. Without a script, `then` is what follows the modules.
    fn archive(&self, script: Option<&str>, then: &str) -> Result<Vec<u8>, String> {
        let mut archive = Archive::default();
        for folder in ["bin", "dev", "proc", "sys", "mnt", "tmp", "modules"] {
            archive.folder(folder);
        }
        archive.file("bin/busybox", 0o755, &read(self.kernel.busybox())?);
        let mut loading = String::new();
        for (name, path) in self.kernel.loaded(&self.modules)? {
            archive.file(
                &format!("modules/{name}.ko"),
                0o644,
                &kernel::module(&path)?,
            );
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

/// Is there a QEMU to run guests? If not, why.
///
/// # Errors
/// What is missing.
pub fn qemu() -> Result<(), String> {
    run(Command::new("qemu-system-x86_64").arg("--version")).map(drop)
}
