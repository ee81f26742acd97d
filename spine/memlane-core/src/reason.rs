//! Why a connection is on TCP: SMC's numbers (net/smc/smc_clc.h, `SMC_CLC_DECL_*`)
//! where SMC has one, and a block of our own (0x0A……) where it has none.

/// A stable reason code. Each stands in the table of docs/guides/seeing.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Reason(pub u32);

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $short:literal, $text:literal;)+) => {
        impl Reason {
            $( $(#[doc = $doc])+ pub const $name: Reason = Reason($code); )+

            /// Every reason, in order of its number.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// Short upper-case name, as `smcd stats` prints (`PEER_NO_SMC`, …).
            pub fn name(self) -> &'static str {
                match self { $(Reason::$name => $short,)+ _ => "UNKNOWN" }
            }

            /// One sentence for people.
            pub fn text(self) -> &'static str {
                match self { $(Reason::$name => $text,)+ _ => "unknown reason" }
            }
        }
    };
}

reasons! {
    /// No reason: the connection is, or may still get, on the memory lane.
    NONE = 0, "NONE", "no reason: not on TCP";
    /// `SMC_CLC_DECL_MEM`: no memory for the DMB, or attaching it failed.
    MEMORY = 0x0101_0000, "MEMORY", "no memory for the buffer, or it could not be attached";
    /// `SMC_CLC_DECL_TIMEOUT_CL`: the server did not answer the proposal.
    TIMEOUT_CL = 0x0201_0000, "TIMEOUT_CL", "the server did not answer the proposal in time";
    /// `SMC_CLC_DECL_TIMEOUT_AL`: the client did not confirm.
    TIMEOUT_AL = 0x0202_0000, "TIMEOUT_AL", "the client did not confirm in time";
    /// `SMC_CLC_DECL_CNFERR`: this side is not configured for it.
    CNF_ERR = 0x0300_0000, "CNF_ERR", "upgrades are switched off on this side";
    /// `SMC_CLC_DECL_PEERNOSMC`: the peer does not run under memlane.
    PEER_NO_MEMLANE = 0x0301_0000, "PEER_NO_SMC", "the peer does not run under memlane";
    /// `SMC_CLC_DECL_NOSMCDEV`: this machine lacks what the lane needs.
    NO_DEVICE = 0x0303_0000, "NOSMCDEV", "this process lacks what the lane needs (memfd, unix sockets or /proc)";
    /// `SMC_CLC_DECL_NOSMCD2DEV`: the two ends are not on the same host or network namespace.
    NOT_SAME_HOST = 0x0303_0007, "NOSMCD2DEV", "the other end is not a process of this host and network namespace";
    /// `SMC_CLC_DECL_NOUEID`: no common enterprise id.
    NO_EID = 0x0303_0008, "NOUEID", "the two sides have no --eid in common";
    /// `SMC_CLC_DECL_RELEASEERR`: the two libraries are of different releases.
    RELEASE = 0x0303_0009, "RELEASEERR", "the peer runs another, incompatible release of memlane";
    /// `SMC_CLC_DECL_MODEUNSUPP`: policy forbids this peer.
    PEER_REFUSED = 0x0304_0000, "MODEUNSUPP", "the peer's user is not allowed by --peer";
    /// `SMC_CLC_DECL_OPTUNSUPP`: a socket option or flag that the lane does not carry.
    OPTION = 0x0306_0000, "OPTUNSUPP", "a socket option or flag is in use that the lane does not carry";
    /// `SMC_CLC_DECL_VERSMISMAT`: unknown version in a message.
    VERSION = 0x030c_0000, "VERSMISMAT", "the peer speaks another version of the handshake";
    /// `SMC_CLC_DECL_MAX_DMB`: no more slots.
    MAX_DMB = 0x030d_0000, "MAX_DMB", "all buffers of this process are in use";
    /// `SMC_CLC_DECL_SYNCERR`: the two sides' byte counts, or ours and the kernel's, disagree.
    COUNTS = 0x0400_0000, "SYNCERR", "somebody else used the descriptor: the kernel counts other bytes than the program moved";
    /// `SMC_CLC_DECL_PEERDECL`: the peer declined, with a reason of its own.
    PEER_DECLINED = 0x0500_0000, "PEERDECL", "the peer declined (see its reason)";
    /// `SMC_CLC_DECL_INTERR`: something in memlane failed.
    INTERNAL = 0x0999_0000, "INTERR", "internal error";
    /// Ours: too young; it may upgrade later.
    TOO_YOUNG = 0x0a01_0000, "TOO_YOUNG", "the connection has not yet shown that it will live (see --upgrade)";
    /// Ours: descriptor used in more than one process.
    SHARED_FD = 0x0a02_0000, "SHARED_FD", "the descriptor is held by more than one process";
    /// Ours: descriptor passed on (SCM_RIGHTS, exec, posix_spawn).
    PASSED_ON = 0x0a03_0000, "PASSED_ON", "the descriptor was passed on to another program";
    /// Ours: stdio or another path that bypasses the hooks.
    UNHOOKED_IO = 0x0a04_0000, "UNHOOKED_IO", "the descriptor is used by stdio or another path that the library cannot see";
    /// Ours: io_uring on the connection, or where nobody can see what it works on.
    IO_URING = 0x0a05_0000, "IO_URING", "the connection is used by io_uring, or io_uring works where the library cannot see it";
    /// Ours: a kind of wait that ring readiness cannot follow.
    WAIT_KIND = 0x0a06_0000, "WAIT_KIND", "the descriptor is waited for in a way that the lane does not follow (SIGIO, io_uring on an epoll set)";
    /// Ours: urgent data.
    URGENT = 0x0a07_0000, "URGENT", "urgent (out-of-band) data was sent or asked for";
    /// Ours: the peer wrote nonsense into the shared memory.
    PEER_MISBEHAVED = 0x0a08_0000, "PEER_MISBEHAVED", "the peer wrote an impossible value into the shared memory";
    /// Ours: the peer asked for TCP only.
    PEER_TCP_ONLY = 0x0a09_0000, "PEER_TCP_ONLY", "the peer asked for TCP only on this connection";
    /// Ours: the connection was (half) closed before an upgrade made sense.
    CLOSING = 0x0a0a_0000, "CLOSING", "the connection was closing";
    /// Ours: identity of the peer could not be proven.
    NOT_PROVEN = 0x0a0b_0000, "NOT_PROVEN", "the peer could not prove that it holds the other end of this connection";
    /// Ours: the process sandboxed itself after start.
    SANDBOXED = 0x0a0c_0000, "SANDBOXED", "the process installed a seccomp filter: no new upgrades";
    /// Ours: a descriptor number that the library does not track.
    FD_RANGE = 0x0a0d_0000, "FD_RANGE", "the descriptor number is beyond what the library tracks";
    /// Ours: no process of this domain has the other end.
    NO_MATCH = 0x0a0f_0000, "NO_MATCH", "no process that the agent knows has the other end: it is not under memlane, in another domain, or a proxy lies between";
    /// Ours: the other network namespace belongs to a user who could have forged the connection.
    NOT_TRUSTED = 0x0a10_0000, "NOT_TRUSTED", "the two network namespaces belong to different users";
    /// Ours: the agent is gone, busy, or does not see this process.
    AGENT = 0x0a11_0000, "AGENT", "the agent is gone or busy, or does not see this process";
    /// Ours: a Go program whose system calls the library does not see.
    GO = 0x0a12_0000, "GO", "the process is a Go program whose system calls the library cannot see";
    /// The receiver of a lane in device memory keeps more than its ring holds.
    RING_KEPT = 0x0a0e_0000, "RING_KEPT", "the receiver keeps more than the ring holds";
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "0x{:08x} {}", self.0, self.text())
    }
}
