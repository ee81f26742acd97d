//! Drives a [`Negotiation`] over a socket, with a time limit.

use super::negotiate::{Agreed, MAX_OPTION, Negotiation, Offer, Step, Tls};
use super::stream::Stream;
use memlane_core::access::SharedBytes;
use memlane_wait::event::{EventFd, poll};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Room for the longest option, and its header.
const BUFFER: usize = MAX_OPTION + 1024;

/// What a handshake needs of its server.
pub(super) struct Doorman<'a> {
    pub(super) offers: &'a [Offer],
    #[cfg(feature = "tls")]
    pub(super) tls: Option<&'a (std::sync::Arc<rustls::ServerConfig>, bool)>,
    pub(super) event: &'a EventFd,
    pub(super) stop: &'a AtomicBool,
    pub(super) limit: Duration,
    pub(super) grace: Duration,
}

/// How it ended well.
pub(super) struct Welcome {
    pub(super) stream: Stream,
    pub(super) agreed: Agreed,
    /// What came behind it.
    pub(super) early: Vec<u8>,
    pub(super) tls: bool,
}

/// One handshake under way.
struct Talk<'a> {
    doorman: &'a Doorman<'a>,
    stream: Stream,
    until: Instant,
    stopping: bool,
    buffer: Vec<u8>,
    filled: usize,
}

impl Doorman<'_> {
    fn policy(&self) -> Tls {
        #[cfg(feature = "tls")]
        if let Some((_, required)) = self.tls {
            return if *required {
                Tls::Required
            } else {
                Tls::Offered
            };
        }
        Tls::Absent
    }

    /// The whole handshake. `None`: the client wanted no more than to ask.
    ///
    /// # Errors
    /// It went away, took too long, or spoke something else.
    pub(super) fn welcome(&self, fd: OwnedFd) -> io::Result<Option<Welcome>> {
        let mut talk = Talk {
            doorman: self,
            stream: Stream::plain(fd)?,
            until: Instant::now() + self.limit,
            stopping: false,
            buffer: vec![0; BUFFER],
            filled: 0,
        };
        let mut negotiation = Negotiation::new(self.offers, self.policy());
        loop {
            let (eaten, step) = negotiation.feed(&talk.buffer[..talk.filled]);
            talk.buffer.copy_within(eaten..talk.filled, 0);
            talk.filled -= eaten;
            talk.send(&negotiation.output())?;
            match step {
                Step::More if eaten > 0 => {}
                Step::More => talk.receive(&mut negotiation)?,
                Step::StartTls => {
                    talk = talk.secure()?;
                    negotiation.secured();
                }
                Step::Begin(agreed) => return Ok(Some(talk.over(agreed))),
                Step::Close => {
                    talk.stream.end();
                    return Ok(None);
                }
            }
        }
    }
}

impl Talk<'_> {
    fn over(mut self, agreed: Agreed) -> Welcome {
        self.buffer.truncate(self.filled);
        Welcome {
            tls: !self.stream.is_plain(),
            stream: self.stream,
            agreed,
            early: self.buffer,
        }
    }

    /// Reads what there is, or waits for it.
    fn receive(&mut self, negotiation: &mut Negotiation<'_>) -> io::Result<()> {
        loop {
            match self
                .stream
                .recv(None, &mut self.buffer[self.filled..], false)
            {
                Ok(came) => {
                    self.filled += came.buffer;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.wait(PollFlags::IN)?;
            if self.stopping {
                negotiation.stop();
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() || self.stream.holds_back() {
            let base = NonNull::from(bytes).cast();
            // SAFETY: our own bytes, which live as long as the call that follows.
            let part = unsafe { SharedBytes::read_only(base, bytes.len()) };
            let parts = if bytes.is_empty() { &[][..] } else { &[part] };
            match self.stream.send(parts) {
                Ok(n) if n > 0 => bytes = &bytes[n.min(bytes.len())..],
                Ok(_) if !self.stream.holds_back() => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Ok(_) | Err(_) => self.wait(PollFlags::OUT)?,
            }
        }
        Ok(())
    }

    /// Bytes in plain text behind `STARTTLS` may come from an attacker: a client that sends some is not served.
    #[cfg(feature = "tls")]
    fn secure(self) -> io::Result<Self> {
        let (Stream::Plain(fd), Some((config, _)), 0) =
            (self.stream, self.doorman.tls, self.filled)
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let tls = Box::new(super::tls::TlsStream::new(fd, config)?);
        let mut talk = Talk {
            stream: Stream::Tls(tls),
            ..self
        };
        while let Stream::Tls(tls) = &mut talk.stream
            && tls.is_handshaking()
        {
            match tls.handshake() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let events = match tls.holds_back() {
                        true => PollFlags::IN | PollFlags::OUT,
                        false => PollFlags::IN,
                    };
                    talk.wait(events)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(talk)
    }

    #[cfg(not(feature = "tls"))]
    fn secure(self) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Until the client has something (or takes something), but not for ever.
    fn wait(&mut self, events: PollFlags) -> io::Result<()> {
        if !self.stopping && self.doorman.stop.load(Ordering::Relaxed) {
            self.stopping = true;
            self.until = self.until.min(Instant::now() + self.doorman.grace);
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut fds = [
            PollFd::from_borrowed_fd(self.stream.as_fd(), events),
            PollFd::from_borrowed_fd(self.doorman.event.as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, Some(left))?;
        if !fds[1].revents().is_empty() {
            self.doorman.event.drain();
        }
        Ok(())
    }
}
