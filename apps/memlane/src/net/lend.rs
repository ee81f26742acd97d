//! `memlane net lend`: a TAP device of this network namespace, for a process of another one to join.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use memlane_packet::AttachError;
use memlane_packet_ends::EndError;
use memlane_packet_ends::loan::{Lender, Loan};
use memlane_sys::Errno;
use rustix::event::{PollFd, PollFlags, poll};

use super::attach::{Stops, is_ready, not_bound};
use super::place::EndSpec;
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::daemon::service;

/// Whoever has come is there already.
const AT_ONCE: Duration = Duration::from_secs(1);
/// After somebody who came in vain: they shall not keep us busy.
const PAUSE: Duration = Duration::from_millis(10);
/// ENODEV.
const GONE: Errno = Errno(19);

/// Lend a TAP device of this network namespace to a process of another one
///
/// That process joins it to an end of its own with memlane net link END lent:SOCKET. Then one process moves the frames
/// between both devices, which is faster than the packet lane between two processes. The permissions of the socket decide
/// who may borrow; @NAME is an abstract name, for processes of the same user.
///
/// Whoever borrows the device can do with it what its owner can: send and receive any frame, change its owner, and keep
/// it until the device is removed. Between processes that do not trust each other that far, use memlane net back and
/// memlane net front.
///
/// The device is lent to one process at a time, and to the next one when that ends.
#[derive(clap::Args, Debug)]
pub(crate) struct LendArgs {
    /// Listen here: a path, or @NAME
    socket: String,
    /// Device to lend: tap:NAME[?netns=NAMESPACE], made if it does not exist
    end: String,
    /// Number of queues of the device; the borrower needs the same number
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    queues: u16,
    /// Exit when the device is given back, instead of waiting for another borrower
    #[arg(long)]
    once: bool,
}

/// What happened while the device was lent, or waited to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// We are to stop.
    Stop,
    /// The device is gone.
    Gone,
    /// Somebody comes.
    Knock,
    /// The borrower says or shows that it has ended.
    GivenBack,
}

pub(super) fn run(args: &LendArgs) -> anyhow::Result<Exit> {
    let usage = |error| fail(Exit::Usage, format!("{}: {error}", args.end));
    let place: EndSpec = args.end.parse().map_err(usage)?;
    let queues = place.open_to_lend(&args.end, args.queues)?;
    let lender =
        Lender::open(&args.socket, queues).map_err(|error| not_bound(&args.socket, error))?;
    let stops = Stops::new(None)?;
    service::ready();
    out::note(&format!("lending {} at {}", args.end, args.socket));
    let lending = Lending {
        args,
        lender,
        stops,
    };
    let ended = lending.serve();
    service::stopping();
    ended.map(|()| Exit::Ok)
}

struct Lending<'a> {
    args: &'a LendArgs,
    lender: Lender,
    stops: Stops,
}

impl Lending<'_> {
    fn serve(&self) -> anyhow::Result<()> {
        loop {
            match self.event(None)? {
                Event::Stop => return Ok(()),
                Event::Gone => return Err(self.gone()),
                Event::Knock => {}
                Event::GivenBack => continue,
            }
            let Some(loan) = self.lend() else {
                continue;
            };
            match self.until_back(&loan)? {
                Event::Stop => return Ok(()),
                Event::Gone => return Err(self.gone()),
                _ if self.args.once => return Ok(()),
                _ => self.say("given back; waiting for another"),
            }
        }
    }

    /// Lends it to whoever has come. `None`: they are gone again, or may not have it.
    fn lend(&self) -> Option<Loan> {
        match self.lender.lend(Instant::now() + AT_ONCE) {
            Ok(loan) => {
                self.say(&match memlane_observe::control::peer(loan.as_fd()) {
                    Ok((pid, uid)) => format!("lent to process {pid}, user {uid}"),
                    Err(_) => "lent".to_owned(),
                });
                Some(loan)
            }
            Err(error) => {
                self.turned_away(Some(error));
                None
            }
        }
    }

    /// Has others wait as long as somebody has the device.
    fn until_back(&self, loan: &Loan) -> anyhow::Result<Event> {
        loop {
            match self.event(Some(loan))? {
                Event::Knock => {
                    let refused = self.lender.refuse(Instant::now() + AT_ONCE);
                    self.turned_away(refused.err());
                }
                event => return Ok(event),
            }
        }
    }

    /// Somebody has come in vain, perhaps because of an error.
    fn turned_away(&self, error: Option<AttachError>) {
        if let Some(stranger @ AttachError::Stranger(_)) = error {
            self.say(&stranger.to_string());
        }
        let _ = is_ready(&[self.stops.all()[0]], PAUSE);
    }

    fn event(&self, loan: Option<&Loan>) -> anyhow::Result<Event> {
        let [bell, _] = self.stops.all();
        loop {
            let mut fds = vec![
                PollFd::from_borrowed_fd(bell, PollFlags::IN),
                // Nothing but its end: frames are the borrower's business.
                PollFd::from_borrowed_fd(self.lender.device(), PollFlags::empty()),
                PollFd::new(&self.lender, PollFlags::IN),
            ];
            fds.extend(loan.map(|loan| PollFd::new(loan, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let shows = |n: usize| fds.get(n).is_some_and(|fd| !fd.revents().is_empty());
            // Whoever gives it back comes before whoever wants it.
            let order = [
                (0, Event::Stop),
                (1, Event::Gone),
                (3, Event::GivenBack),
                (2, Event::Knock),
            ];
            if let Some((_, event)) = order.into_iter().find(|(n, _)| shows(*n)) {
                return Ok(event);
            }
        }
    }

    fn gone(&self) -> anyhow::Error {
        let error = EndError::Device(GONE);
        fail(Exit::Failed, format!("{}: {error}", self.args.end))
    }

    fn say(&self, what: &str) {
        out::note(&format!("{}: {what}", self.args.end));
    }
}
