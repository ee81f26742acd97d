//! How the verbs talk to the processes that serve and map: one JSON request and one reply by an abstract socket.
//!
//! The name is `memlane/ROLE/UID/NAME`; nothing is left behind by `kill -9`. Either end asks the kernel who the other
//! is: a process obeys its own user and root, and a verb believes only those.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::{MapSpec, PathSpec};
use super::tls::TlsSpec;
use crate::exit::{Exit, fail};

/// Longest request or reply.
const LONGEST: u64 = 4 << 20;
/// How long one side waits for the other to say something.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// `memlane serve`.
    Server,
    /// The process behind `memlane map`: one for each session.
    Session,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Session => "session",
        }
    }
}

/// What is asked.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Everything about it.
    Describe,
    /// Map one more volume, of the server at these paths.
    Map {
        spec: MapSpec,
        paths: Vec<PathSpec>,
        #[serde(default)]
        tls: Option<TlsSpec>,
        wait: Duration,
    },
    /// End a mapping.
    Unmap { volume: String, force: bool },
    /// Open a volume anew, now.
    Remap { volume: String },
    /// One more path.
    AddPath { path: PathSpec },
    /// One less; `path` as `session show` prints it.
    RemovePath { path: String },
    /// Take a volume from a session that is gone for good (servers).
    Release { volume: String, session: String },
    /// Change a volume's size (servers).
    Resize { volume: String, size: u64 },
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

fn address(role: Role, uid: u32, name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("memlane/{}/{uid}/{name}", role.word()))
}

fn uid() -> u32 {
    crate::os::ids().0
}

/// May this peer tell us something, or be told?
fn trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?
        .uid
        .as_raw();
    Ok(peer == 0 || peer == uid())
}

/// The listening end.
pub(crate) struct Listener(UnixListener);

impl Listener {
    /// Takes the name, unless somebody has it.
    pub(crate) fn bind(role: Role, name: &str) -> io::Result<Listener> {
        UnixListener::bind_addr(&address(role, uid(), name)?).map(Listener)
    }

    /// Answers requests, one at a time, for ever: they are short.
    pub(crate) fn serve(&self, handle: impl FnMut(Request) -> Reply) {
        self.serve_until(handle, || false);
    }

    /// Likewise, until `over` says so, when a request was answered.
    pub(crate) fn serve_until(
        &self,
        mut handle: impl FnMut(Request) -> Reply,
        over: impl Fn() -> bool,
    ) {
        loop {
            match self.0.accept() {
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

fn answer(stream: &UnixStream, handle: &mut impl FnMut(Request) -> Reply) -> io::Result<()> {
    if !trusted(stream)? {
        return Ok(());
    }
    // A client that says nothing must not keep others waiting.
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.set_write_timeout(Some(Duration::from_secs(2)))?;
    let reply = match receive::<Request>(stream) {
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

/// Asks the process `name`; `None` if there is none, or it ended before it described itself.
pub(crate) fn ask(
    role: Role,
    name: &str,
    request: &Request,
) -> anyhow::Result<Option<serde_json::Value>> {
    let Ok(stream) = UnixStream::connect_addr(&address(role, uid(), name)?) else {
        return Ok(None);
    };
    if !trusted(&stream)? {
        return Err(fail(
            Exit::PeerRefused,
            format!("another user answers as {} {name:?}", role.word()),
        ));
    }
    let longer = match request {
        Request::Map { wait, .. } => *wait,
        _ => Duration::ZERO,
    };
    stream.set_read_timeout(Some(PATIENCE.saturating_add(longer)))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let said = send(&stream, request).and_then(|()| receive::<Reply>(&stream));
    match said {
        // It has ended at this moment. Of what it was told to do, nobody knows what became.
        Err(error) if *request == Request::Describe && is_gone(&error) => Ok(None),
        said => said?.into_result().map(Some),
    }
}

/// Names of all that listen, of this user and network namespace.
pub(crate) fn list(role: Role) -> io::Result<Vec<String>> {
    let prefix = format!("@memlane/{}/{}/", role.word(), uid());
    let table = std::fs::read_to_string("/proc/net/unix")?;
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| named(line, &prefix))
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
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

    fn unique(what: &str) -> String {
        format!("test-{what}-{}", std::process::id())
    }

    #[test]
    fn a_request_is_answered_and_its_error_keeps_its_exit_code() {
        let name = unique("answer");
        let listener = Listener::bind(Role::Session, &name).expect("a free name");
        std::thread::spawn(move || {
            listener.serve(|request| {
                Reply::from_result(match request {
                    Request::Describe => Ok("all is well".into()),
                    _ => Err(fail(Exit::PeerRefused, "no")),
                })
            })
        });
        let said = ask(Role::Session, &name, &Request::Describe).expect("an answer");
        assert_eq!(said, Some("all is well".into()));
        let volume = "v".to_owned();
        let error = ask(Role::Session, &name, &Request::Remap { volume }).expect_err("refused");
        assert_eq!(crate::exit::code_of(&error), Exit::PeerRefused);
        assert!(list(Role::Session).expect("a table").contains(&name));
        assert!(!list(Role::Server).expect("a table").contains(&name));
    }

    #[test]
    fn nobody_there_is_not_an_error() {
        let asked = ask(Role::Session, &unique("nobody"), &Request::Describe);
        assert_eq!(asked.expect("no error"), None);
    }

    #[test]
    fn who_ends_while_it_is_asked_is_not_there() {
        let name = unique("ends");
        let listener = Listener::bind(Role::Session, &name).expect("a free name");
        let ends = std::thread::spawn(move || {
            // With the question read, and without.
            for read in [true, false] {
                let (mut stream, _) = listener.0.accept().expect("a question");
                if read {
                    stream.read_to_end(&mut Vec::new()).expect("it is whole");
                }
            }
            listener.0.accept().map(drop)
        });
        for _ in 0..2 {
            let asked = ask(Role::Session, &name, &Request::Describe);
            assert_eq!(asked.expect("no error"), None);
        }
        let volume = "v".to_owned();
        ask(Role::Session, &name, &Request::Remap { volume }).expect_err("nobody knows");
        ends.join().expect("no panic").expect("a question");
    }

    #[test]
    fn garbage_is_answered_with_a_reason_and_the_next_one_is_served() {
        let name = unique("garbage");
        let listener = Listener::bind(Role::Session, &name).expect("a free name");
        std::thread::spawn(move || listener.serve(|_| Reply::Done("yes".into())));
        let to = address(Role::Session, uid(), &name).expect("an address");
        let stream = UnixStream::connect_addr(&to).expect("somebody");
        (&stream).write_all(b"{\"verb\":\"erase\"}").expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("shut");
        let reply = receive::<Reply>(&stream).expect("a reply");
        assert!(
            matches!(reply, Reply::Failed { exit_code: 2, .. }),
            "{reply:?}"
        );
        let said = ask(Role::Session, &name, &Request::Describe).expect("an answer");
        assert_eq!(said, Some("yes".into()));
    }
}
