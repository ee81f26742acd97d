//! How verbs talk to processes of memlane that run: one JSON question and one reply by a unix socket.
//!
//! Servers and sessions have abstract names, `memlane/ROLE/UID/NAME`: nothing is left behind by `kill -9`. Processes of
//! `memlane net` live in network namespaces of their own, where abstract names of another are not seen, so theirs are
//! files in the user's run directory; one that a killed process left there is taken away by the next who looks.
//! Either end asks the kernel who the other is: a process obeys its own user and root, and a verb believes only those.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, fail};

/// Longest question or reply.
const LONGEST: u64 = 4 << 20;
/// How long a client may take to say something: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// `memlane serve`.
    Server,
    /// The process behind `memlane map`: one for each session.
    Session,
    /// `memlane net`, one that joins ends.
    Net,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Session => "session",
            Role::Net => "net",
        }
    }

    /// Is its name a file in the run directory?
    fn has_a_file(self) -> bool {
        self == Role::Net
    }
}

/// What a role can be asked.
pub(crate) trait Question: Serialize + DeserializeOwned {
    /// Nothing is done: if there is no answer, nothing is lost.
    fn is_a_look(&self) -> bool;
    /// How long the answer may take.
    fn patience(&self) -> Duration;
}

/// What comes back.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// It is done; for people, or (of `Describe`) for the verb that asked.
    Done(serde_json::Value),
    /// It is not.
    Failed {
        /// For the verb's exit.
        exit_code: u8,
        /// Why.
        message: String,
    },
}

impl Reply {
    /// What a handler's result becomes.
    pub(crate) fn from_result(result: anyhow::Result<serde_json::Value>) -> Reply {
        match result {
            Ok(value) => Reply::Done(value),
            Err(error) => Reply::Failed {
                exit_code: crate::exit::code_of(&error).code(),
                message: format!("{error:#}"),
            },
        }
    }

    fn into_result(self) -> anyhow::Result<serde_json::Value> {
        match self {
            Reply::Done(value) => Ok(value),
            Reply::Failed { exit_code, message } => Err(fail(Exit::from_code(exit_code), message)),
        }
    }
}

/// Names of files are ours to choose; those of people are to be names.
pub(crate) fn is_name(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(fine)
}

fn abstract_name(role: Role, name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("memlane/{}/{}/{name}", role.word(), uid()))
}

/// Where a user's run-time files are, in the order in which they are tried: /run/memlane of root, the directory that a
/// login made, and one that everybody can make.
fn run_directories() -> Vec<PathBuf> {
    let uid = uid();
    let login = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let login = login.filter(|at| uid != 0 && at.is_absolute());
    let root = (uid == 0).then(|| PathBuf::from("/run"));
    let first = root.or(login).map(|at| at.join("memlane"));
    let common = PathBuf::from(format!("/tmp/memlane-{uid}"));
    first.into_iter().chain([common]).collect()
}

/// Is it a directory in which nobody else can put a name?
fn is_ours(directory: &Path) -> bool {
    let kind = fs::symlink_metadata(directory);
    kind.is_ok_and(|kind| kind.is_dir() && kind.uid() == uid() && kind.mode() & 0o022 == 0)
}

/// Those of them that are there and ours.
pub(crate) fn own_directories() -> impl Iterator<Item = PathBuf> {
    let all = run_directories().into_iter();
    all.filter(|directory| is_ours(directory))
}

/// Makes the first of them that can be made.
pub(crate) fn own_directory() -> io::Result<PathBuf> {
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

/// A name's files, where there are such directories.
fn files(role: Role, name: &str) -> impl Iterator<Item = PathBuf> {
    own_directories().map(move |directory| file_in(&directory, role, name))
}

/// Held while names in a directory are made or taken away. Whoever holds it does not wait for anybody.
pub(crate) fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    for _ in 0..40 {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(50)),
            locked => return locked.map(|()| file).map_err(io::Error::from),
        }
    }
    Err(io::Error::other("somebody keeps the directory locked"))
}

/// Takes away a name behind which nobody listens.
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
    crate::os::ids().0
}

/// May this peer tell us something, or be told?
fn trusted(stream: &UnixStream) -> io::Result<bool> {
    let (_, peer) = crate::os::peer(stream.as_fd())?;
    Ok(peer == 0 || peer == uid())
}

/// The listening end.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    file: Option<PathBuf>,
}

/// A name that is in use. A file goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Held(Option<PathBuf>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = fs::remove_file(file);
        }
    }
}

impl Listener {
    /// Takes the name, unless somebody has it (`AddrInUse`).
    pub(crate) fn bind(role: Role, name: &str) -> io::Result<Listener> {
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

    /// Answers questions on a thread of its own, as long as the process lives.
    pub(crate) fn in_background<Q: Question>(
        mut self,
        handle: impl FnMut(Q) -> Reply + Send + 'static,
    ) -> io::Result<Held> {
        let held = Held(self.file.take());
        let thread = std::thread::Builder::new().name("control".into());
        thread.spawn(move || self.serve(handle))?;
        Ok(held)
    }

    /// Answers requests, one at a time, for ever: they are short.
    pub(crate) fn serve<Q: Question>(&self, handle: impl FnMut(Q) -> Reply) {
        self.serve_until(handle, || false);
    }

    /// Likewise, until `over` says so, when a request was answered.
    pub(crate) fn serve_until<Q: Question>(
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
                Err(_) => std::thread::sleep(Duration::from_millis(100)), // no descriptor left
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
            exit_code: Exit::Usage.code(),
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

/// Does it mean that the other end ended before it said anything?
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Somebody who listens under this name.
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

/// Connects, unless the queue of those who want to is full: that of a stopped process may stay so (`WouldBlock`).
fn dial(at: &SocketAddrUnix) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, at)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Takes away what a killed process left. Somebody may be about to listen there: not without the lock.
fn sweep(file: &Path) {
    if let Some(directory) = file.parent()
        && let Ok(_lock) = lock(directory)
    {
        let _ = clear(file);
    }
}

/// Asks the process `name`; `None` if there is none, or it ended before it could answer a look.
pub(crate) fn ask<Q: Question>(
    role: Role,
    name: &str,
    question: &Q,
) -> anyhow::Result<Option<serde_json::Value>> {
    let silent = || {
        let role = role.word();
        anyhow::anyhow!("{role} {name:?} does not answer: is it stopped?")
    };
    let stream = match connect(role, name) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent()),
        connected => connected?,
    };
    let Some(stream) = stream else {
        return Ok(None);
    };
    if !trusted(&stream)? {
        return Err(fail(
            Exit::PeerRefused,
            format!("another user answers as {} {name:?}", role.word()),
        ));
    }
    stream.set_read_timeout(Some(question.patience()))?;
    stream.set_write_timeout(Some(question.patience()))?;
    let said = send(&stream, question).and_then(|()| receive::<Reply>(&stream));
    match said {
        // It has ended at this moment. Of what it was told to do, nobody knows what became.
        Err(error) if question.is_a_look() && is_gone(&error) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(silent()),
        said => said?.into_result().map(Some),
    }
}

/// Names of all that listen, of this user; of roles without files, in this network namespace. Behind a file, there may
/// be nobody any more.
pub(crate) fn list(role: Role) -> io::Result<Vec<String>> {
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
    let table = fs::read_to_string("/proc/net/unix")?;
    Ok(table
        .lines()
        .filter_map(|line| named(line, &prefix))
        .collect())
}

/// The name in a line of /proc/net/unix, if it listens there.
fn named(line: &str, prefix: &str) -> Option<String> {
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
        fn is_a_look(&self) -> bool {
            *self == Ask::Look
        }
        fn patience(&self) -> Duration {
            Duration::from_secs(10)
        }
    }

    const ROLES: [Role; 2] = [Role::Session, Role::Net];

    fn unique(what: &str) -> String {
        format!("test-{what}-{}", std::process::id())
    }

    #[test]
    fn a_request_is_answered_and_its_error_keeps_its_exit_code() {
        for role in ROLES {
            let name = unique("answer");
            let listener = Listener::bind(role, &name).expect("a free name");
            let held = listener.in_background(|request| {
                Reply::from_result(match request {
                    Ask::Look => Ok("all is well".into()),
                    Ask::Do => Err(fail(Exit::PeerRefused, "no")),
                })
            });
            let held = held.expect("a thread");
            let said = ask(role, &name, &Ask::Look).expect("an answer");
            assert_eq!(said, Some("all is well".into()));
            let error = ask(role, &name, &Ask::Do).expect_err("refused");
            assert_eq!(crate::exit::code_of(&error), Exit::PeerRefused);
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
            // With the question read, and without.
            for read in [true, false] {
                let (mut stream, _) = listener.socket.accept().expect("a question");
                if read {
                    stream.read_to_end(&mut Vec::new()).expect("it is whole");
                }
            }
            listener.socket.accept().map(drop)
        });
        for _ in 0..2 {
            let asked = ask(Role::Session, &name, &Ask::Look);
            assert_eq!(asked.expect("no error"), None);
        }
        ask(Role::Session, &name, &Ask::Do).expect_err("nobody knows");
        ends.join().expect("no panic").expect("a question");
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
            assert!(error.to_string().contains("is it stopped?"), "{error}");
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
