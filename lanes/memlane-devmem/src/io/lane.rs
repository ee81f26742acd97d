//! Payload that a process of this host puts into the region itself: the socket lane, whose ring lies there.
//!
//! The stream is TCP and stays TCP. A part of the region is given to the peer, if it has the lane too and is who the
//! kernel says it is; then it writes there, and we hand out where. The part is as long as its ring, and the peer gets no
//! other memory of the region. What comes by TCP all the same (before both agree, or while the ring is full, or for
//! good) goes into chunks, as on the path `mapped`, in its order.

use super::binding::Binding;
use super::laned::{Laned, Part};
use super::path::{NoPath, Passed, Path};
use super::stream::{Stream, Terms};
use memlane_socket::native::Standing;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub use super::laned::{lacks, passed};
pub use memlane_socket::native::End;

/// How long the other end may take to agree, if no other path is good enough.
const AGREED_WITHIN: Duration = Duration::from_millis(2500);

/// How long it may take if another path will do.
const TRIED_FOR: Duration = Duration::from_millis(50);

/// Of a connected TCP socket, of this end. If the other end turns out to be elsewhere, or to have no lane, all comes by
/// TCP, as on the path `mapped`; [`Stream::path`] says which it is by now.
///
/// # Errors
/// If this path is required: what speaks against it.
pub fn stream(
    socket: OwnedFd,
    end: End,
    binding: &Arc<Binding>,
    terms: &Terms,
) -> Result<Stream, NoPath> {
    let required = terms.require == Some(Path::Lane);
    if !required && terms.require.is_some() {
        return Ok(Stream::new(socket, binding, terms));
    }
    let part = Part::take(binding);
    open(socket, end, binding, terms, part.map(Some))
}

/// A stream that only sends, over a connected TCP socket: the region's bytes are copied into the other end's memory, and none of it is given to that.
///
/// # Errors
/// As [`stream`].
pub fn sender(
    socket: OwnedFd,
    end: End,
    binding: &Arc<Binding>,
    terms: &Terms,
) -> Result<Stream, NoPath> {
    open(socket, end, binding, terms, Ok(None))
}

fn open(
    socket: OwnedFd,
    end: End,
    binding: &Arc<Binding>,
    terms: &Terms,
    part: Result<Option<Part>, Vec<String>>,
) -> Result<Stream, NoPath> {
    let only_sends = matches!(part, Ok(None));
    let laned = match part.and_then(|part| Laned::open(&socket, end, part)) {
        Ok(laned) => laned,
        Err(lacks) if terms.require == Some(Path::Lane) => return Err(no(lacks)),
        Err(_) => return Ok(Stream::new(socket, binding, terms)),
    };
    // Who receives has agreed by the time that something comes, or soon.
    if only_sends || terms.require.is_some() {
        let lane = laned.lane().map_err(|errno| no(vec![errno.to_string()]))?;
        agreed(terms.require, |limit| lane.negotiate(limit))?;
    }
    Ok(Stream::laned(socket, binding, Box::new(laned), terms))
}

/// Has both ends agree, for some time; if it is required, they must.
///
/// # Errors
/// Why they do not.
pub fn agreed(
    require: Option<Path>,
    negotiate: impl FnOnce(Duration) -> Standing,
) -> Result<(), NoPath> {
    let required = require == Some(Path::Lane);
    let standing = negotiate(if required { AGREED_WITHIN } else { TRIED_FOR });
    match passed(standing, 0) {
        Some(why) if required => Err(NoPath(why)),
        _ => Ok(()),
    }
}

fn no(lacks: Vec<String>) -> NoPath {
    let path = Path::Lane;
    NoPath(Passed { path, lacks })
}
