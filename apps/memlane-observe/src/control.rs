//! Control sockets: how a program asks a running memlane process for something.
//!
//! Servers (`memlane serve`), sessions (`memlane map`), packet processes (`memlane net`) and the agent (`memlane agent`) listen
//! on a unix socket. A client sends one JSON question and gets one JSON [`Reply`].
//!
//! Servers and sessions have abstract names, `memlane/ROLE/UID/NAME`, so `kill -9` leaves nothing behind. Processes of
//! `memlane net`, and an agent in a container, run in network namespaces of their own, where an abstract name of another
//! namespace is not visible. Their sockets are files in the user's run directory; whoever looks next removes the file of a killed process.
//!
//! Both ends ask the kernel who the other end is. A process obeys its own user and root, and a client believes only
//! these two.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest question or reply, in bytes.
const LONGEST: u64 = 4 << 20;
/// How long a client may take to send its question. Other clients wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// The exit code of wrong usage, for a question that is not understood.
const USAGE: u8 = 2;

/// What kind of process listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// `memlane serve`.
    Server,
    /// The background process of `memlane map`; each session has one.
    Session,
    /// A process of `memlane net` that joins two ends.
    Net,
    /// `memlane agent`.
    Agent,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Session => "session",
            Role::Net => "net",
            Role::Agent => "agent",
        }
    }

    /// Whether its name is a file in the run directory.
    fn has_a_file(self) -> bool {
        matches!(self, Role::Net | Role::Agent)
    }
}

/// What a process can be asked. It travels as JSON.
pub trait Question: Serialize + DeserializeOwned {
    /// Whether the question changes nothing. If the process ends before it answers such a question, [`ask`] returns
    /// `None` instead of an error.
    fn is_read_only(&self) -> bool;

    /// How long the answer may take.
    fn timeout(&self) -> Duration;
}

/// The answer to a question.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The process did it; the value is its answer.
    Done(serde_json::Value),
    /// The process did not do it.
    Failed {
        /// The code with which the command that asked is to exit (`docs/exit-codes.md`).
        exit_code: u8,
        /// Why, for people.
        message: String,
    },
}

/// Why a question got no answer, or the answer was no.
#[derive(Debug)]
pub enum AskError {
    /// The process exists and does not answer; it may be stopped.
    Silent(Role, String),
    /// The process read a question that was to change something, and ended before it answered.
    Ended(Role, String),
    /// A process of another user has this name.
    Stranger(Role, String),
    /// The process answered [`Reply::Failed`].
    Refused {
        /// The code with which the command that asked is to exit.
        exit_code: u8,
        /// Why, for people.
        message: String,
    },
    /// The answer is not what the caller expects; a process of another version may give such an answer.
    Answer(serde_json::Error),
    /// The connection failed.
    Io(io::Error),
}

impl std::fmt::Display for AskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AskError::Silent(role, name) => {
                write!(
                    f,
                    "{} {name:?} does not answer: is it stopped, or busy?",
                    role.word()
                )
            }
            AskError::Ended(role, name) => {
                write!(
                    f,
                    "{} {name:?} ended before it answered: look whether it did what it was asked for",
                    role.word()
                )
            }
            AskError::Stranger(role, name) => {
                write!(f, "another user answers as {} {name:?}", role.word())
            }
            AskError::Refused { message, .. } => f.write_str(message),
            AskError::Answer(error) => write!(f, "the answer is not understood: {error}"),
            AskError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AskError {}

impl From<serde_json::Error> for AskError {
    fn from(error: serde_json::Error) -> AskError {
        AskError::Answer(error)
    }
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> AskError {
        AskError::Io(error)
    }
}

/// Whether users may choose `name` for a process: 1 to 64 ASCII letters, digits, dots, underscores and hyphens.
pub fn is_name(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(fine)
}

fn abstract_name(role: Role, name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("memlane/{}/{}/{name}", role.word(), uid()))
}

/// Directories for this user's run-time files, in the order in which they are tried: `/run/memlane` for root or
/// `$XDG_RUNTIME_DIR/memlane` for others, then `/tmp/memlane-UID`.
fn run_directories() -> Vec<PathBuf> {
    let uid = uid();
    let login = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let login = login.filter(|at| uid != 0 && at.is_absolute());
    let root = (uid == 0).then(|| PathBuf::from("/run"));
    let first = root.or(login).map(|at| at.join("memlane"));
    let common = PathBuf::from(format!("/tmp/memlane-{uid}"));
    first.into_iter().chain([common]).collect()
}

/// Whether it is a directory of this user to which nobody else can write.
fn is_ours(directory: &Path) -> bool {
    let kind = fs::symlink_metadata(directory);
    kind.is_ok_and(|kind| kind.is_dir() && kind.uid() == uid() && kind.mode() & 0o022 == 0)
}

/// The run directories that exist, belong to this user and are writable by nobody else.
pub fn own_directories() -> impl Iterator<Item = PathBuf> {
    let all = run_directories().into_iter();
    all.filter(|directory| is_ours(directory))
}

/// Makes the first run directory that can be made, and returns its path.
///
/// # Errors
///
/// That of the last directory tried, if none can be made or all belong to others.
pub fn own_directory() -> io::Result<PathBuf> {
    let mut made = Err(io::ErrorKind::NotFound.into());
    for directory in run_directories() {
        made = make(&directory).map(|()| directory);
        if made.is_ok() {
            break;
        }
    }
    made
}

fn make(directory: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)?;
    if is_ours(directory) {
        return Ok(());
    }
    let why = format!(
        "{} belongs to others, or they can write to it",
        directory.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn file_in(directory: &Path, role: Role, name: &str) -> PathBuf {
    directory.join(format!("{}-{name}", role.word()))
}

/// The paths that `name` may have, one for each run directory.
fn files(role: Role, name: &str) -> impl Iterator<Item = PathBuf> {
    own_directories().map(move |directory| file_in(&directory, role, name))
}

/// Locks a run directory; dropping the file unlocks it. A process holds the lock while it makes or removes files there,
/// and waits for nothing meanwhile.
///
/// # Errors
///
/// Those of opening the directory; also if another process keeps the lock for two seconds.
pub fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    for _ in 0..40 {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(50)),
            locked => return locked.map(|()| file).map_err(io::Error::from),
        }
    }
    Err(io::Error::other(
        "another process keeps the directory locked",
    ))
}

/// Removes a socket file on which nobody listens.
fn clear(file: &Path) -> io::Result<()> {
    let nobody = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    let kind = fs::symlink_metadata(file);
    if !kind.is_ok_and(|kind| kind.file_type().is_socket()) {
        return Ok(());
    }
    match SocketAddrUnix::new(file).map(|at| dial(&at)) {
        Ok(Err(error)) if nobody(&error) => fs::remove_file(file),
        _ => Ok(()),
    }
}

fn bind_file(directory: &Path, role: Role, name: &str) -> io::Result<Listener> {
    make(directory)?;
    let _lock = lock(directory)?;
    let file = file_in(directory, role, name);
    clear(&file)?;
    let socket = UnixListener::bind(&file)?;
    Ok(Listener {
        socket,
        file: Some(file),
    })
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Process id and user id of the other end of a unix socket, from the kernel. The process id is 0 if it lives in another
/// pid namespace.
///
/// # Errors
///
/// Those of `getsockopt`.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = libc::socklen_t::try_from(size_of_val(&cred)).unwrap_or(0);
    // SAFETY: the kernel writes at most `len` bytes to `cred`, and `ucred` consists of integers, which any bytes make.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    match done {
        0 => Ok((cred.pid, cred.uid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the other end is this user or root.
fn trusted(stream: &UnixStream) -> io::Result<bool> {
    let (_, peer) = peer(stream.as_fd())?;
    Ok(peer == 0 || peer == uid())
}

/// The listening end.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    file: Option<PathBuf>,
}

/// Keeps the name of a process that answers in the background. Dropping it removes the socket file, if the role has one.
#[derive(Debug)]
pub struct NameGuard(Option<PathBuf>);

impl Drop for NameGuard {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = fs::remove_file(file);
        }
    }
}

impl Listener {
    /// Takes the name.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`], if a process has the name; otherwise those of the socket.
    pub fn bind(role: Role, name: &str) -> io::Result<Listener> {
        if !role.has_a_file() {
            let socket = UnixListener::bind_addr(&abstract_name(role, name)?)?;
            return Ok(Listener { socket, file: None });
        }
        let mut bound = Err(io::ErrorKind::NotFound.into());
        for directory in run_directories() {
            bound = bind_file(&directory, role, name);
            match &bound {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {}
                _ => break,
            }
        }
        bound
    }

    /// Answers questions on a new thread as long as the process lives.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn in_background<Q: Question>(
        mut self,
        handle: impl FnMut(Q) -> Reply + Send + 'static,
    ) -> io::Result<NameGuard> {
        let held = NameGuard(self.file.take());
        let thread = std::thread::Builder::new().name("control".into());
        thread.spawn(move || self.serve(handle))?;
        Ok(held)
    }

    /// Answers questions for ever, one at a time.
    pub fn serve<Q: Question>(&self, handle: impl FnMut(Q) -> Reply) {
        self.serve_until(handle, || false);
    }

    /// Answers questions, one at a time. It asks `over` after each answer, and returns when that says true.
    pub fn serve_until<Q: Question>(
        &self,
        mut handle: impl FnMut(Q) -> Reply,
        over: impl Fn() -> bool,
    ) {
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    let _ = answer(&stream, &mut handle);
                    if over() {
                        return;
                    }
                }
                // No descriptor is left.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

fn answer<Q: Question>(stream: &UnixStream, handle: &mut impl FnMut(Q) -> Reply) -> io::Result<()> {
    if !trusted(stream)? {
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let reply = match receive::<Q>(stream) {
        Ok(request) => handle(request),
        Err(error) => Reply::Failed {
            exit_code: USAGE,
            message: format!("not a request: {error}"),
        },
    };
    send(stream, &reply)
}

fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    stream.write_all(&bytes)?;
    stream.shutdown(std::net::Shutdown::Write)
}

fn receive<T: for<'a> Deserialize<'a>>(stream: &UnixStream) -> io::Result<T> {
    let mut bytes = Vec::new();
    stream.take(LONGEST).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&bytes)?)
}

/// Whether the error means that the other process ended before it had read the question: the kernel resets a connection
/// that nobody has accepted, or whose bytes nobody has read.
fn is_unread(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

/// Whether the error means that the other process ended between the question and the answer.
fn is_unanswered(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

/// Connects to the process that has this name; `None` if there is none.
fn connect(role: Role, name: &str) -> io::Result<Option<UnixStream>> {
    use io::ErrorKind::{ConnectionRefused, WouldBlock};
    if !role.has_a_file() {
        let name = format!("memlane/{}/{}/{name}", role.word(), uid());
        return match dial(&SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
            Err(error) if error.kind() == WouldBlock => Err(error),
            dialled => Ok(dialled.ok()),
        };
    }
    for file in files(role, name) {
        match dial(&SocketAddrUnix::new(&file)?) {
            Ok(stream) => return Ok(Some(stream)),
            Err(error) if error.kind() == WouldBlock => return Err(error),
            Err(error) if error.kind() == ConnectionRefused => sweep(&file),
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Connects without waiting. `WouldBlock`: the queue of connections is full, as that of a stopped process may stay.
fn dial(at: &SocketAddrUnix) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, at)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Removes the file of a killed process. It needs the lock, because another process may be about to listen there.
fn sweep(file: &Path) {
    if let Some(directory) = file.parent()
        && let Ok(_lock) = lock(directory)
    {
        let _ = clear(file);
    }
}

/// Asks the process `name`. `None`: there is no such process; or it ended before it had read the question, or before it
/// answered one that changes nothing.
///
/// # Errors
///
/// [`AskError`], if the process does not answer, belongs to another user, or refuses.
pub fn ask<Q: Question>(
    role: Role,
    name: &str,
    question: &Q,
) -> Result<Option<serde_json::Value>, AskError> {
    let silent = || AskError::Silent(role, name.to_owned());
    let stream = match connect(role, name) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent()),
        connected => connected?,
    };
    let Some(stream) = stream else {
        return Ok(None);
    };
    if !trusted(&stream)? {
        return Err(AskError::Stranger(role, name.to_owned()));
    }
    stream.set_read_timeout(Some(question.timeout()))?;
    stream.set_write_timeout(Some(question.timeout()))?;
    let said = send(&stream, question).and_then(|()| receive::<Reply>(&stream));
    match said {
        Err(error) if is_unread(&error) => Ok(None),
        Err(error) if is_unanswered(&error) => match question.is_read_only() {
            true => Ok(None),
            // Nobody knows whether it did what it was asked for.
            false => Err(AskError::Ended(role, name.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(silent()),
        said => match said? {
            Reply::Done(value) => Ok(Some(value)),
            Reply::Failed { exit_code, message } => Err(AskError::Refused { exit_code, message }),
        },
    }
}

/// Names of this user's processes, sorted. Servers and sessions are those of this network namespace. A process of
/// `memlane net` or an agent may have been killed: then its name is listed until somebody asks it.
///
/// # Errors
///
/// Those of reading `/proc/net/unix`.
pub fn list(role: Role) -> io::Result<Vec<String>> {
    let mut names = match role.has_a_file() {
        true => listed_files(role),
        false => listening(role)?,
    };
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

fn listed_files(role: Role) -> Vec<String> {
    let prefix = format!("{}-", role.word());
    let entries = own_directories().flat_map(|at| fs::read_dir(at).into_iter().flatten().flatten());
    entries
        .filter_map(|entry| {
            Some(
                entry
                    .file_name()
                    .to_str()?
                    .strip_prefix(&prefix)?
                    .to_owned(),
            )
        })
        .collect()
}

fn listening(role: Role) -> io::Result<Vec<String>> {
    let prefix = format!("@memlane/{}/{}/", role.word(), uid());
    // Other programs choose the other names: any bytes.
    let table = fs::read("/proc/net/unix")?;
    Ok(String::from_utf8_lossy(&table)
        .lines()
        .filter_map(|line| named(line, &prefix))
        .collect())
}

/// The name in a line of `/proc/net/unix`, if the socket listens.
fn named(line: &str, prefix: &str) -> Option<String> {
    /// `__SO_ACCEPTCON` of the kernel's `include/uapi/linux/net.h`.
    const SO_ACCEPTCON: u32 = 0x1_0000;
    let mut fields = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let path = fields.nth(3)?;
    let name = path.strip_prefix(prefix)?;
    (flags & SO_ACCEPTCON != 0).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    #[serde(tag = "verb", rename_all = "kebab-case")]
    enum Ask {
        Look,
        Do,
    }

    impl Question for Ask {
        fn is_read_only(&self) -> bool {
            *self == Ask::Look
        }
        fn timeout(&self) -> Duration {
            Duration::from_secs(10)
        }
    }

    const ROLES: [Role; 2] = [Role::Session, Role::Net];

    fn unique(what: &str) -> String {
        format!("test-{what}-{}", std::process::id())
    }

    #[test]
    fn a_stranger_s_name_that_is_no_text_hides_nobody() {
        use std::os::linux::net::SocketAddrExt as _;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let bytes = [&b"\xff\xfe\n"[..], unique("bytes").as_bytes()].concat();
        let strange = SocketAddr::from_abstract_name(bytes).expect("a name");
        let _stranger = UnixListener::bind_addr(&strange).expect("a free name");
        let name = unique("beside");
        let _listener = Listener::bind(Role::Session, &name).expect("a free name");
        let names = list(Role::Session).expect("a list");
        assert!(names.contains(&name), "{names:?}");
    }

    #[test]
    fn a_request_is_answered_and_its_error_keeps_its_exit_code() {
        for role in ROLES {
            let name = unique("answer");
            let listener = Listener::bind(role, &name).expect("a free name");
            let held = listener.in_background(|request| match request {
                Ask::Look => Reply::Done("all is well".into()),
                Ask::Do => Reply::Failed {
                    exit_code: 4,
                    message: "no".into(),
                },
            });
            let held = held.expect("a thread");
            let said = ask(role, &name, &Ask::Look).expect("an answer");
            assert_eq!(said, Some("all is well".into()));
            let error = ask(role, &name, &Ask::Do).expect_err("refused");
            assert!(
                matches!(error, AskError::Refused { exit_code: 4, .. }),
                "{error:?}"
            );
            assert!(list(role).expect("a table").contains(&name));
            assert!(!list(Role::Server).expect("a table").contains(&name));
            let again = Listener::bind(role, &name).expect_err("it is taken");
            assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
            drop(held);
            assert_eq!(
                list(role).expect("a table").contains(&name),
                role == Role::Session
            );
        }
    }

    #[test]
    fn nobody_there_is_not_an_error() {
        let asked = ask(Role::Session, &unique("nobody"), &Ask::Look);
        assert_eq!(asked.expect("no error"), None);
    }

    #[test]
    fn who_ends_while_it_is_asked_is_not_there() {
        let name = unique("ends");
        let listener = Listener::bind(Role::Session, &name).expect("a free name");
        let ends = std::thread::spawn(move || {
            // A question that changes nothing, read and unread; one that is to change something, unread and read.
            for read in [true, false, false, true] {
                let (mut stream, _) = listener.socket.accept().expect("a question");
                if read {
                    stream.read_to_end(&mut Vec::new()).expect("it is whole");
                }
            }
        });
        for question in [Ask::Look, Ask::Look, Ask::Do] {
            let asked = ask(Role::Session, &name, &question);
            assert_eq!(asked.expect("no error"), None);
        }
        let error = ask(Role::Session, &name, &Ask::Do).expect_err("nobody knows");
        assert!(error.to_string().contains("ended before"), "{error}");
        ends.join().expect("no panic");
    }

    #[test]
    fn garbage_is_answered_with_a_reason_and_the_next_one_is_served() {
        let name = unique("garbage");
        let listener = Listener::bind(Role::Session, &name).expect("a free name");
        std::thread::spawn(move || listener.serve(|_: Ask| Reply::Done("yes".into())));
        let to = abstract_name(Role::Session, &name).expect("an address");
        let stream = UnixStream::connect_addr(&to).expect("somebody");
        (&stream).write_all(b"{\"verb\":\"erase\"}").expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("shut");
        let reply = receive::<Reply>(&stream).expect("a reply");
        assert!(
            matches!(reply, Reply::Failed { exit_code: 2, .. }),
            "{reply:?}"
        );
        let said = ask(Role::Session, &name, &Ask::Look).expect("an answer");
        assert_eq!(said, Some("yes".into()));
    }

    #[test]
    fn the_file_of_a_dead_process_is_nobody_s_name() {
        let name = unique("dead");
        let dead = Listener::bind(Role::Net, &name).expect("a free name");
        let file = dead.file.clone().expect("a file");
        // As after kill -9: the socket goes, its name stays.
        drop(dead);
        assert!(file.exists());
        assert_eq!(ask(Role::Net, &name, &Ask::Look).expect("no error"), None);
        assert!(!file.exists());
        drop(Listener::bind(Role::Net, &name).expect("a free name"));
        let next = Listener::bind(Role::Net, &name).expect("a name that a dead process left");
        drop(next.in_background(|_: Ask| Reply::Done("yes".into())));
        assert!(!file.exists());
    }

    #[test]
    fn a_process_with_a_full_queue_keeps_nobody_waiting() {
        for role in ROLES {
            let name = unique("full");
            let listener = Listener::bind(role, &name).expect("a free name");
            rustix::net::listen(&listener.socket, 0).expect("a shorter queue");
            let mut waiting = Vec::new();
            while let Ok(Some(stream)) = connect(role, &name) {
                waiting.push(stream);
            }
            assert!(!waiting.is_empty());
            let error = ask(role, &name, &Ask::Look).expect_err("nobody answers");
            assert!(
                error.to_string().contains("is it stopped, or busy?"),
                "{error}"
            );
            // It is somebody's name all the same.
            assert!(Listener::bind(role, &name).is_err());
            drop(listener.in_background(|_: Ask| Reply::Done("yes".into())));
        }
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        let at = std::env::temp_dir().join(unique("open"));
        bind_file(&at, Role::Net, "x").expect("a new directory");
        assert!(is_ours(&at));
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&at, open).expect("it is ours");
        let error = bind_file(&at, Role::Net, "y").expect_err("others could replace the socket");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let link = at.with_extension("link");
        std::os::unix::fs::symlink("/", &link).expect("a link");
        assert!(!is_ours(&link));
        let _ = fs::remove_file(link);
        fs::remove_dir_all(at).expect("it is ours");
    }

    #[test]
    fn names_are_names() {
        assert!(["a", "1234", "tap-one.2", "A_b"].into_iter().all(is_name));
        let long = "x".repeat(65);
        assert!(!["", "a/b", "a b", "ä", &long].into_iter().any(is_name));
    }
}
