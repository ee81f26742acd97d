//! One error enum per thing that can fail.

use core::fmt;

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Fewer bytes than the layout has.
    Short {
        /// Bytes that there are.
        have: usize,
        /// Bytes that there must be.
        need: usize,
    },
    /// The magic of a connection message is another one.
    Magic(u16),
    /// Another major version of the protocol.
    Version(u16),
    /// No such message type here.
    Type(u16),
    /// No such type of immediate.
    ImmediateType(u32),
    /// A field has a value that it must not have.
    Field(&'static str),
    /// A name that is empty, too long, not text, or holds `/` or `.`.
    Name,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Short { have, need } => write!(f, "{have} bytes where {need} belong"),
            WireError::Magic(magic) => write!(f, "magic {magic:#06x} is not RTRS"),
            WireError::Version(version) => write!(f, "protocol version {version:#06x}"),
            WireError::Type(kind) => write!(f, "no message of type {kind} belongs here"),
            WireError::ImmediateType(kind) => write!(f, "no immediate of type {kind}"),
            WireError::Field(field) => write!(f, "field {field} is out of range"),
            WireError::Name => f.write_str("not a session name"),
        }
    }
}

impl core::error::Error for WireError {}

/// Why a path went down or did not come up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathError {
    /// Bytes from the peer are no message.
    Wire(WireError),
    /// The peer said what it must not say in this state.
    Misbehaved(&'static str),
    /// The peer closed the connection.
    Closed,
    /// The kernel ended the connection, or could not make it: Linux's error number.
    Os(i32),
    /// No sign of life for too long.
    Silent,
    /// No answer to a connection attempt.
    ConnectTimeout,
    /// The server refused; its (positive) error number.
    Refused(u16),
    /// The server that answers has other chunks than this session was set up with.
    GeometryChanged,
    /// The server that answers is not the one that this path knew.
    ServerRestarted,
    /// The same path came again with a newer epoch, or was fenced.
    Superseded,
    /// A user asked for it.
    Requested,
    /// No encrypted connection came about, or it ended.
    Tls(TlsError),
    /// This machine has too few huge pages for the session's memory, which needs this number.
    HugePages(u32),
    /// The RDMA device, or what is needed for it, says no.
    Rdma(RdmaError),
    /// The memory that this machine shares is not the one that the server uses.
    OtherMemory,
    /// A path by memory that machines share, in a session that was told of none.
    NoSharedMemory,
}

/// What RDMA says no to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RdmaError {
    /// This machine has no RDMA that could be used.
    Missing,
    /// The session's memory is more than this process may lock.
    MemoryLock,
    /// A work request failed: `enum ibv_wc_status`.
    Completion(i32),
}

impl fmt::Display for RdmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RdmaError::Missing => f.write_str("no RDMA on this machine: `memlane info` says what is missing"),
            RdmaError::MemoryLock => f.write_str(
                "the device may not lock the session's memory: raise the limit (ulimit -l, LimitMEMLOCK=)",
            ),
            RdmaError::Completion(status) => {
                write!(f, "RDMA: {}", memlane_verbs::Status::of(*status))
            }
        }
    }
}

/// Linux's `ENOMEM`: the server has no memory for another session.
pub const ENOMEM: u16 = 12;
/// Linux's `EACCES`: this client may not have a session of this name.
pub const EACCES: u16 = 13;
/// Linux's `EBUSY`: the server has as many connections as it takes, in all or from this address.
pub const EBUSY: u16 = 16;
/// Linux's `ENOSPC`: the memory that the server shares with other machines is full.
pub const ENOSPC: u16 = 28;
/// Linux's `EOPNOTSUPP`: the server shares no memory with other machines.
pub const EOPNOTSUPP: u16 = 95;
/// Linux's `EPROTONOSUPPORT`: a server without TLS to a client that wants it.
pub const EPROTONOSUPPORT: u16 = 93;
/// Linux's `ENOKEY`: a server with TLS to a client without.
pub const ENOKEY: u16 = 126;

impl PathError {
    /// Only a person can correct it: another try fails until then.
    #[must_use]
    pub fn wants_a_person(&self) -> bool {
        match self {
            PathError::Refused(errno) => {
                [ENOMEM, EACCES, EOPNOTSUPP, EPROTONOSUPPORT, ENOKEY].contains(errno)
            }
            PathError::Tls(error) => *error != TlsError::Ended,
            PathError::HugePages(_) | PathError::OtherMemory | PathError::NoSharedMemory => true,
            PathError::Rdma(error) => matches!(error, RdmaError::Missing | RdmaError::MemoryLock),
            _ => false,
        }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathError::Wire(error) => write!(f, "not a message: {error}"),
            PathError::Misbehaved(what) => write!(f, "the peer misbehaved: {what}"),
            PathError::Closed => f.write_str("the peer closed the connection"),
            PathError::Os(errno) => f.write_str(&words(*errno)),
            PathError::Silent => f.write_str("no sign of life"),
            PathError::ConnectTimeout => f.write_str("no answer to the connection attempt"),
            PathError::Refused(EACCES) => f.write_str(
                "refused by the server: this client may not have a session of this name (see its certificate, or user)",
            ),
            PathError::Refused(ENOKEY) => {
                f.write_str("refused by the server: it wants TLS, and this client has none: say --tls")
            }
            PathError::Refused(ENOMEM) => f.write_str(
                "refused by the server: it has no memory for another session (with `--memory hugetlb`: raise vm.nr_hugepages there)",
            ),
            PathError::Refused(ENOSPC) => f.write_str(
                "refused by the server: the memory that it shares with other machines is full: end other clients, or make it larger",
            ),
            PathError::Refused(EOPNOTSUPP) => f.write_str(
                "refused by the server: it shares no memory with other machines (memlane serve --device)",
            ),
            PathError::Refused(errno) => {
                write!(f, "refused by the server: {}", words((*errno).into()))
            }
            PathError::GeometryChanged => f.write_str("the server now has other chunks"),
            PathError::ServerRestarted => f.write_str("the server has restarted"),
            PathError::Superseded => f.write_str("superseded or fenced"),
            PathError::Requested => f.write_str("closed on request"),
            PathError::Tls(error) => write!(f, "{error}"),
            PathError::HugePages(need) => write!(
                f,
                "too few huge pages are free on this machine: the session's memory needs {need} (sysctl vm.nr_hugepages=N), or leave `--memory hugetlb` out"
            ),
            PathError::Rdma(error) => write!(f, "{error}"),
            PathError::OtherMemory => f.write_str(
                "this machine's shared memory is not the server's: name the device that has the server's region (--device)",
            ),
            PathError::NoSharedMemory => f.write_str(
                "this session was told of no memory that machines share: name the device (--device)",
            ),
        }
    }
}

impl core::error::Error for PathError {}

/// The C library's, without the number.
fn words(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}

impl From<WireError> for PathError {
    fn from(error: WireError) -> Self {
        PathError::Wire(error)
    }
}

/// Why there is no encrypted connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsError {
    /// The peer speaks without encryption.
    NotTls,
    /// The peer closed the connection before it was there.
    Ended,
    /// The peer's certificate is not believed here.
    Theirs(CertificateFault),
    /// The peer does not believe ours.
    Ours(CertificateFault),
    /// No version, method or application protocol in common.
    NothingInCommon,
    /// Bytes that are no TLS, or not from whom they should be.
    Broken,
}

/// What is wrong with a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CertificateFault {
    /// None was shown.
    Missing,
    /// Its time is over, or has not come. Or a clock is wrong.
    Expired,
    /// Of an authority that is not believed.
    UnknownIssuer,
    /// Its owner is another user.
    WrongName,
    /// Taken back by its authority.
    Revoked,
    /// Made for another use: a server's of a client, or the other way round.
    Purpose,
    /// It cannot be read, or its signature is wrong.
    Bad,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::NotTls => f.write_str(
                "the other end speaks without TLS: is it another service, or a server without --tls?",
            ),
            TlsError::Ended => f.write_str("closed before TLS was there"),
            TlsError::Theirs(fault) => write!(f, "the other end's certificate {fault}"),
            TlsError::Ours(fault) => write!(f, "the other end says that our certificate {fault}"),
            TlsError::NothingInCommon => f.write_str(
                "no version or protocol of TLS in common: is that memlane, and of this version?",
            ),
            TlsError::Broken => f.write_str("bytes that are no TLS, or were changed on their way"),
        }
    }
}

impl core::error::Error for TlsError {}

impl fmt::Display for CertificateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CertificateFault::Missing => "is missing: a certificate must be shown",
            CertificateFault::Expired => {
                "has expired or is not valid yet: renew it, or set the clock"
            }
            CertificateFault::UnknownIssuer => {
                "is of an unknown authority: compare both ends' ca-cert.pem"
            }
            CertificateFault::WrongName => {
                "is for another name: add the name to it, or say which name it has"
            }
            CertificateFault::Revoked => "was revoked: make a new one",
            CertificateFault::Purpose => {
                "is for another use: a server needs serverAuth, a client clientAuth"
            }
            CertificateFault::Bad => "is not accepted: unreadable, or its signature is wrong",
        })
    }
}

/// Why a request was not taken. Nothing has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// Every permit is in use: try again after a completion.
    NoPermit,
    /// No path is up, and the session is told to fail then (or never had one).
    NoPath,
    /// More data, or a longer user message, than a chunk takes.
    TooLong,
    /// The destination of a read is absent or shorter than the read.
    Destination,
    /// A write of memory that the CPU does not reach.
    BeyondCpu,
    /// The session is closed.
    Closed,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::NoPermit => "every permit is in use",
            SubmitError::NoPath => "no path to the server",
            SubmitError::TooLong => "longer than a chunk of the server",
            SubmitError::Destination => "no room for what is to be read",
            SubmitError::BeyondCpu => "only a device reaches what is to be written",
            SubmitError::Closed => "the session is closed",
        })
    }
}

impl core::error::Error for SubmitError {}

/// How a request that was taken failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// The server executed it and says so: never retried.
    Remote(u16),
    /// No path came back within the limit. It may or may not have been executed; it will not be from now on
    /// unless a copy of it already lies at the server.
    TimedOut,
    /// All paths are down and the session is told to fail then. Outcome as for `TimedOut`.
    NoPath,
    /// It was never sent: more data, or a longer message, than the server takes at a time, or a read without enough
    /// room for what it asks for.
    TooLong,
    /// It was never sent: a write of memory that the CPU does not reach.
    BeyondCpu,
    /// The server restarted; the request, which was meant for the one before, may or may not have been executed.
    OutcomeUnknown,
    /// The path died and the server has no memory for replays, so that a second copy is not safe.
    Aborted,
    /// The session was closed. Outcome as for `TimedOut`.
    Closed,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Remote(errno) => write!(f, "the server answered errno {errno}"),
            RequestError::TimedOut => f.write_str("no path came back in time"),
            RequestError::NoPath => f.write_str("all paths are down"),
            RequestError::TooLong => f.write_str("longer than the server takes at a time"),
            RequestError::BeyondCpu => f.write_str("only a device reaches what is to be written"),
            RequestError::OutcomeUnknown => f.write_str("the server restarted; outcome unknown"),
            RequestError::Aborted => f.write_str("the path died; the server cannot tell a replay"),
            RequestError::Closed => f.write_str("the session was closed"),
        }
    }
}

impl core::error::Error for RequestError {}
