//! One enum for each thing that can fail.

use crate::io::Path;
use core::fmt;
use memlane_netlink::Refused;
use memlane_sys::Errno;

/// A number of the kernel's, in words.
fn said(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.0)
}

/// Why there is no such region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegionError {
    /// This text names no region.
    Name(String),
    /// This machine has no such memory: what is missing, and what to do.
    Missing(String),
    /// The kernel refused: what was tried.
    Kernel(&'static str, Errno),
    /// The device is there, and refused: a whole sentence.
    Device(String),
    /// A chunk must be a power of two, from a page to 64 MiB, and not larger than the region.
    Chunk(u32),
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::Name(text) => write!(
                f,
                "{text}: a region is memfd:SIZE, hugetlb:SIZE, udmabuf:SIZE, dmaheap:NAME:SIZE or cuda:N:SIZE (64M, 1G)"
            ),
            RegionError::Missing(what) | RegionError::Device(what) => f.write_str(what),
            RegionError::Kernel(what, errno) => write!(f, "{what}: {}", said(*errno)),
            RegionError::Chunk(size) => write!(
                f,
                "chunks of {size} bytes: a power of two, from 4096 to 67108864, that is not larger than the region, and of which it has no more than 16777216"
            ),
        }
    }
}

impl core::error::Error for RegionError {}

/// Why nothing was given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseError {
    /// One call takes 128 ranges (the kernel: EINVAL).
    TooManyRanges(usize),
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseError::TooManyRanges(count) => {
                write!(f, "{count} ranges of tokens: at most 128 at a time")
            }
        }
    }
}

impl core::error::Error for ReleaseError {}

/// Why nothing was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveError {
    /// Nothing is there yet.
    WouldBlock,
    /// All chunks or tokens are out: give some back.
    NoRoom,
    /// The kernel refused.
    Kernel(Errno),
    /// What came could not be copied into the region: nothing behind it is handed out.
    Copy(AccessError),
    /// Device memory that an interface writes to: the stream is over.
    Interface(Fault),
    /// This path takes more than a socket.
    Unprepared(Path),
}

/// What went wrong where an interface writes to the device. None of it can be mended within the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Payload came into the memory of another binding.
    Steering {
        /// That one.
        theirs: u32,
        /// The one that it should have been.
        ours: u32,
    },
    /// The kernel names bytes beyond the region.
    Outside(u64),
    /// What it tells makes no sense.
    Told,
    /// This many bytes came beside the device, and the region has no part that is kept for these.
    Beside(u32),
    /// It refused.
    Refused(Errno),
    /// A ring is one thread's, and this is another one.
    Thread,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Steering { theirs, ours } => write!(
                f,
                "flow steering: payload came into binding {theirs}, and ours is {ours}: the rule must name our queues only, ethtool -n INTERFACE"
            ),
            Fault::Thread => f.write_str(
                "a stream of io_uring's stays on the thread that received from it first",
            ),
            Fault::Outside(offset) => {
                write!(f, "the kernel names bytes at {offset}, beyond the region")
            }
            Fault::Told => f.write_str("what the kernel tells of device memory makes no sense"),
            Fault::Beside(bytes) => write!(
                f,
                "{bytes} bytes came beside the device (headers were not split off, or the flow is not steered), and this region has no room for them: take udmabuf:SIZE, which keeps some"
            ),
            Fault::Refused(errno) => {
                write!(f, "the interface's memory: {errno}")?;
                received(*errno).map_or(Ok(()), |hint| write!(f, ": {hint}"))
            }
        }
    }
}

/// What a number means to who receives (`tcp_recvmsg_dmabuf` in the kernel).
fn received(errno: Errno) -> Option<&'static str> {
    Some(match errno.0 {
        19 => {
            "ENODEV, something between the interface and the socket has put payload elsewhere (a tunnel, a bridge)"
        }
        14 => "EFAULT, payload lies in device memory, and was not asked for there",
        12 => "ENOMEM, the kernel has no memory for more tokens: release some",
        525 => "ETOOSMALL, there was no room for what is told of the first fragment",
        _ => return None,
    })
}

/// What a number means to who sends (`tcp_sendmsg_locked`, `validate_xmit_unreadable_skb` in the kernel).
fn sent(errno: Errno) -> Option<&'static str> {
    Some(match errno.0 {
        22 => "EINVAL, the binding is none to send from, or the bytes are not in it",
        19 => "ENODEV, the way to the peer leaves by another interface than the bound one",
        113 => "EHOSTUNREACH, there is no way to the peer",
        90 => "EMSGSIZE, in too many pieces",
        105 => "ENOBUFS, no memory to tell when it is sent: sysctl net.core.optmem_max",
        _ => return None,
    })
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::WouldBlock => f.write_str("nothing is there yet"),
            ReceiveError::NoRoom => {
                f.write_str("all chunks of the region, or all tokens, are out: release some")
            }
            ReceiveError::Kernel(errno) => write!(f, "receiving: {}", said(*errno)),
            ReceiveError::Copy(why) => write!(f, "the copy into the region: {why}"),
            ReceiveError::Interface(fault) => write!(f, "{fault}"),
            ReceiveError::Unprepared(path) => {
                write!(
                    f,
                    "path {path} takes more than a socket: it was not prepared"
                )
            }
        }
    }
}

impl core::error::Error for ReceiveError {}

/// Why bytes of a fragment, or of a region, cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// No fragment that is out has this token.
    NoSuchToken(u32),
    /// Beyond the fragment's, or the region's, end.
    Outside,
    /// The device refused.
    Device(Errno),
    /// Whoever copies has died.
    Gone,
    /// The CPU cannot reach this memory.
    Unmapped,
    /// CUDA's driver refused, with this number.
    Cuda(i32),
    /// The interface that reads from the device.
    Interface(Errno),
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessError::NoSuchToken(token) => {
                write!(f, "no fragment that is out has token {token}")
            }
            AccessError::Outside => f.write_str("beyond the end"),
            AccessError::Device(errno) => write!(f, "device: {}", said(*errno)),
            AccessError::Unmapped => f.write_str("the CPU cannot reach this memory"),
            #[cfg(feature = "cuda")]
            AccessError::Cuda(number) => write!(f, "{}", crate::cuda::refused::Refused(*number)),
            #[cfg(not(feature = "cuda"))]
            AccessError::Cuda(number) => write!(f, "CUDA error {number}"),
            AccessError::Gone => f.write_str("the thread that copies is gone"),
            AccessError::Interface(errno) => {
                write!(f, "from device memory: {errno}")?;
                sent(*errno).map_or(Ok(()), |hint| write!(f, ": {hint}"))
            }
        }
    }
}

impl core::error::Error for AccessError {}

/// Why the kernel's own path cannot be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelError {
    /// There is no interface of this name.
    NoInterface(String),
    /// The region is no dma-buf.
    NoDmaBuf,
    /// The kernel has no such netlink family, or nobody may ask it.
    NoFamily(Refused),
    /// It refused: its number and words.
    Refused(Refused),
    /// It answered without a binding's number.
    NoAnswer,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::NoInterface(name) => write!(f, "there is no interface {name}"),
            KernelError::NoDmaBuf => {
                f.write_str("the region is no dma-buf: take udmabuf:SIZE or dmaheap:NAME:SIZE")
            }
            KernelError::NoFamily(why) => {
                write!(
                    f,
                    "no netlink family netdev (Linux 6.12 has what it takes): {why}"
                )
            }
            KernelError::Refused(why) => {
                write!(f, "the kernel does not bind it: {why}")?;
                hint(why.errno).map_or(Ok(()), |hint| write!(f, ": {hint}"))
            }
            KernelError::NoAnswer => f.write_str("the kernel's answer names no binding"),
        }
    }
}

impl core::error::Error for KernelError {}

/// What a number means here (`netdev_nl_bind_rx_doit`, `net_devmem_bind_dmabuf`, `dma_buf_get` in the kernel).
fn hint(errno: rustix::io::Errno) -> Option<&'static str> {
    use rustix::io::Errno;
    Some(match errno {
        Errno::PERM => "it takes CAP_NET_ADMIN",
        Errno::NODEV => "there is no such interface in this network namespace",
        Errno::OPNOTSUPP => {
            "the interface's driver cannot give single queues other memory, or the kernel is too old (6.12 to receive, 6.16 to send)"
        }
        Errno::INVAL => {
            "no queue was named, the descriptor is no dma-buf, or the interface is no device that could reach it (lo, dummy, veth)"
        }
        Errno::BADF => "the descriptor is not open",
        Errno::BUSY | Errno::EXIST => {
            "a queue has other memory already (AF_XDP, io_uring, another binding)"
        }
        Errno::RANGE => "the interface has fewer queues",
        _ => return None,
    })
}

/// Why there is no zero-copy receive by io_uring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ZcrxError {
    /// No region to try it with.
    Region(RegionError),
    /// The interface has the region as a whole, and this one has chunks for others.
    Shared,
    /// The region is neither mapped nor a dma-buf.
    Unreachable,
    /// No ring, or none of the kind that it takes.
    NoRing(Errno),
    /// No memory for what goes back.
    Memory(Errno),
    /// The kernel does not know of it.
    TooOld,
    /// It takes leave.
    Permission,
    /// The interface is not there, or its driver cannot: its name, and why.
    Interface(String, &'static str),
    /// The interface has no queue of this number.
    NoQueue(String, u32),
    /// The kernel refused.
    Refused(Errno),
    /// Its answer makes no sense.
    NoAnswer,
}

impl fmt::Display for ZcrxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ZcrxError::Region(why) => write!(f, "no region to try it with: {why}"),
            ZcrxError::Shared => {
                f.write_str("the interface takes the whole region: bind it with nothing kept")
            }
            ZcrxError::Unreachable => {
                f.write_str("the region is neither mapped nor a dma-buf: no interface can reach it")
            }
            ZcrxError::NoRing(Errno(38)) => f.write_str("this kernel has no io_uring"),
            ZcrxError::NoRing(Errno(1)) => {
                f.write_str("io_uring is not allowed here: sysctl kernel.io_uring_disabled")
            }
            ZcrxError::NoRing(Errno(22)) => {
                f.write_str("this kernel's io_uring is too old: Linux 6.15 has zero-copy receive")
            }
            ZcrxError::NoRing(errno) => write!(f, "no ring of io_uring's: {errno}"),
            ZcrxError::Memory(errno) => write!(f, "no memory for the refill ring: {errno}"),
            ZcrxError::TooOld => {
                f.write_str("this kernel has no zero-copy receive by io_uring: Linux 6.15 has (7.1 without an interface)")
            }
            ZcrxError::Permission => f.write_str("giving a queue other memory takes CAP_NET_ADMIN"),
            ZcrxError::Interface(name, why) => write!(f, "{name} {why}"),
            ZcrxError::NoQueue(name, queue) => {
                write!(f, "{name} has no receive queue {queue}: ethtool -l {name}")
            }
            ZcrxError::Refused(errno) => write!(f, "the kernel does not give it the queue: {errno}"),
            ZcrxError::NoAnswer => f.write_str("the kernel's answer makes no sense"),
        }
    }
}

impl core::error::Error for ZcrxError {}
