//! An interface is prepared to receive into device memory, and put back as it was.
//!
//! The order is that of `Documentation/networking/devmem.rst`: headers are split off, rules are looked at, the last
//! queues are taken out of everybody else's way, bound, and only then get their flow. The way back is the reverse: a
//! queue that is bound must have split headers, and a flow must not find a queue that is not bound any more.

use super::nic::Nic;
use crate::error::KernelError;
use crate::wire::ethtool::Rings;
use crate::wire::steer::{Flow, Target};
use core::fmt;
use memlane_netlink::Refused;
use std::os::fd::BorrowedFd;

/// What is wanted of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The number of its queues, counted from the last one.
    pub queues: u32,
    /// Which packets go there. `None`: somebody else has seen to that, and to all settings; nothing is changed, only
    /// looked at, and the region is bound.
    pub flow: Option<Flow>,
}

/// Why an interface is not prepared. Whatever had been changed is as it was before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetupError {
    /// What was wanted, of which interface.
    pub step: String,
    /// Why it is not so.
    pub why: String,
    /// The command that would mend it, or show it.
    pub mend: String,
    /// What could not be put back as it was, each with the command that does.
    pub left: Vec<String>,
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.step, self.why, self.mend)?;
        self.left
            .iter()
            .try_for_each(|left| write!(f, "; left changed: {left}"))
    }
}

impl core::error::Error for SetupError {}

/// A change, as it is taken back.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Undo {
    Rings(Rings),
    Rules,
    /// The table as it was; `true`: as the driver has it by itself.
    Spread(Vec<u32>, bool),
    Unbind,
    Context(u32),
    Rule(u32),
}

/// An interface that is prepared. What was changed is put back when this is dropped; [`put_back`](Self::put_back) says
/// what could not be. Nothing does that for a process that is killed: the binding goes with it, settings and rule stay.
#[derive(Debug)]
pub struct Setup<N: Nic> {
    nic: N,
    undo: Vec<Undo>,
    /// What was changed, in words.
    changed: Vec<String>,
    binding: u32,
}

/// Steps that are taken, or only looked at: what, and the command.
const SPLITTING: (&str, &str) = (
    "splitting headers off",
    "ethtool -G DEV tcp-data-split on hds-thresh 0",
);
/// The step that keeps other packets off the bound queues.
const KEEPING: &str = "keeping other packets off these queues";

/// `ETHTOOL_TCP_DATA_SPLIT_ENABLED`.
const SPLIT: u8 = 2;

impl<N: Nic> Setup<N> {
    /// Prepares it, and binds a dma-buf.
    ///
    /// # Errors
    /// [`SetupError`]: which step, why, and what would mend it.
    pub fn prepare(
        nic: N,
        dma_buf: BorrowedFd<'_>,
        wanted: &Wanted,
    ) -> Result<Setup<N>, SetupError> {
        let mut setup = Setup {
            nic,
            undo: Vec::new(),
            changed: Vec::new(),
            binding: 0,
        };
        match setup.steps(dma_buf, wanted) {
            Ok(()) => Ok(setup),
            Err(error) => Err(SetupError {
                left: setup.put_back(),
                ..error
            }),
        }
    }

    /// The binding's number.
    pub fn binding(&self) -> u32 {
        self.binding
    }

    /// What was changed, in words.
    pub fn changed(&self) -> &[String] {
        &self.changed
    }

    fn steps(&mut self, dma_buf: BorrowedFd<'_>, wanted: &Wanted) -> Result<(), SetupError> {
        let (first, end) = self.find_queues(wanted.queues)?;
        let queues: Vec<u32> = (first..end).collect();
        let Some(flow) = &wanted.flow else {
            self.look(first)?;
            return self.bind(dma_buf, &queues);
        };
        self.split_headers()?;
        self.look_at_rules()?;
        self.keep_others_off(first)?;
        self.bind(dma_buf, &queues)?;
        let target = self.target(&queues)?;
        self.steer(flow, target)
    }

    /// Is everything as it must be? Without rules for flows to be looked at: somebody may steer by other means.
    fn look(&mut self, first: u32) -> Result<(), SetupError> {
        let rings = self.nic.rings();
        let rings = rings.map_err(|why| self.no(SPLITTING.0, &said(&why), SPLITTING.1))?;
        if rings.split != Some(SPLIT) || rings.from.unwrap_or(0) != 0 {
            return Err(self.no(SPLITTING.0, &"it does not, of every packet", SPLITTING.1));
        }
        let mend = format!("ethtool -X DEV equal {first}");
        let spread = self.nic.spread();
        let spread = spread.map_err(|why| self.no(KEEPING, &said(&why), &mend))?;
        if spread.iter().any(|queue| *queue >= first) {
            return Err(self.no(KEEPING, &"they are spread over these, too", &mend));
        }
        Ok(())
    }

    fn no(&self, step: &str, why: &impl fmt::Display, mend: &str) -> SetupError {
        let name = self.nic.name();
        SetupError {
            step: format!("{name}: {step}"),
            why: why.to_string(),
            mend: mend.replace("DEV", name),
            left: Vec::new(),
        }
    }

    fn did(&mut self, what: String, undo: Undo) {
        self.changed.push(what);
        self.undo.push(undo);
    }

    /// The last queues, of which there must be others.
    fn find_queues(&mut self, wanted: u32) -> Result<(u32, u32), SetupError> {
        let step = "queues for device memory";
        let queues = self.nic.queues();
        let queues = queues
            .map_err(|why| self.no(step, &said(&why), "ethtool -l DEV shows which there are"))?;
        let all = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        if all == 0 {
            let why = "it shows no receive queue, as one does that is down";
            return Err(self.no(step, &why, "ip link set DEV up; ethtool -l DEV"));
        }
        if wanted == 0 || wanted >= all {
            let why = format!(
                "{wanted} of {all} receive queues, and one at least must stay for everything else"
            );
            let mend = format!(
                "ethtool -L DEV combined {}",
                wanted.saturating_add(1).max(2)
            );
            return Err(self.no(step, &why, &mend));
        }
        let first = all - wanted;
        let taken = queues.iter().find(|q| q.id >= first && q.bound.is_some());
        if let Some(taken) = taken {
            let why = format!("queue {} is bound already", taken.id);
            return Err(self.no(
                step,
                &why,
                "another program has it: it ends with its process",
            ));
        }
        Ok((first, all))
    }

    fn split_headers(&mut self) -> Result<(), SetupError> {
        let (step, mend) = SPLITTING;
        let before = self
            .nic
            .rings()
            .map_err(|why| self.no(step, &said(&why), mend))?;
        let whole = before.from.unwrap_or(0) == 0;
        if before.split == Some(SPLIT) && whole {
            return Ok(());
        }
        let to = Rings {
            split: Some(SPLIT),
            from: before.from.map(|_| 0),
        };
        self.nic
            .set_rings(to)
            .map_err(|why| self.no(step, &said(&why), mend))?;
        self.did("headers are split off".into(), Undo::Rings(before));
        Ok(())
    }

    fn look_at_rules(&mut self) -> Result<(), SetupError> {
        let (step, mend) = ("rules for flows", "ethtool -K DEV ntuple on");
        if self
            .nic
            .rules()
            .map_err(|why| self.no(step, &said(&why), mend))?
        {
            return Ok(());
        }
        self.nic
            .set_rules(true)
            .map_err(|why| self.no(step, &said(&why), mend))?;
        self.did("rules for flows are looked at".into(), Undo::Rules);
        Ok(())
    }

    /// Packets without a rule go to the queues before `first`.
    fn keep_others_off(&mut self, first: u32) -> Result<(), SetupError> {
        let step = KEEPING;
        let mend = format!("ethtool -X DEV equal {first}");
        let before = self
            .nic
            .spread()
            .map_err(|why| self.no(step, &said(&why), &mend))?;
        if before.iter().all(|queue| *queue < first) {
            return Ok(());
        }
        let all = before.iter().max().map_or(0, |last| last + 1);
        let plain = before == equal(before.len(), 0, all);
        let table = equal(before.len(), 0, first);
        self.nic
            .set_spread(&table)
            .map_err(|why| self.no(step, &said(&why), &mend))?;
        let what = format!("packets without a rule go to queues 0 to {}", first - 1);
        self.did(what, Undo::Spread(before, plain));
        Ok(())
    }

    fn bind(&mut self, dma_buf: BorrowedFd<'_>, queues: &[u32]) -> Result<(), SetupError> {
        let bound = self.nic.bind(dma_buf, queues);
        self.binding = bound.map_err(|why: KernelError| {
            self.no(
                "binding the region",
                &why,
                "memlane devmem probe --interface DEV",
            )
        })?;
        let what = format!("binding {} has queues {queues:?}", self.binding);
        self.did(what, Undo::Unbind);
        Ok(())
    }

    /// One queue, or a context of several.
    fn target(&mut self, queues: &[u32]) -> Result<Target, SetupError> {
        if let [one] = queues {
            return Ok(Target::Queue(*one));
        }
        let step = "a context of several queues";
        let mend = "--queues 1";
        let entries = self
            .nic
            .spread()
            .map_err(|why| self.no(step, &said(&why), mend))?
            .len();
        let first = queues.first().copied().unwrap_or(0);
        let count = u32::try_from(queues.len()).unwrap_or(1);
        let context = self.nic.add_context(&equal(entries, first, count));
        let context = context.map_err(|why| self.no(step, &said(&why), mend))?;
        self.did(
            format!("context {context} has them"),
            Undo::Context(context),
        );
        Ok(Target::Context(context))
    }

    fn steer(&mut self, flow: &Flow, target: Target) -> Result<(), SetupError> {
        let place = self.nic.add_rule(flow, target);
        let place = place.map_err(|why| {
            let mend = "ethtool -n DEV shows which rules there are, and the driver's manual which it can have";
            self.no(&format!("a rule for {flow}"), &said(&why), mend)
        })?;
        self.did(format!("rule {place}: {flow}"), Undo::Rule(place));
        Ok(())
    }

    /// Puts everything back as it was, the last change first; what could not be, each with the command that does.
    pub fn put_back(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        while let Some(undo) = self.undo.pop() {
            if let Err(why) = self.take_back(&undo) {
                let by_hand = by_hand(&undo, self.nic.name());
                left.push(format!("{by_hand} ({why})"));
            }
        }
        self.changed.clear();
        left
    }

    fn take_back(&mut self, undo: &Undo) -> Result<(), Refused> {
        match undo {
            Undo::Rings(before) => self.nic.set_rings(*before),
            Undo::Rules => self.nic.set_rules(false),
            Undo::Spread(_, true) => self.nic.set_spread(&[]),
            Undo::Spread(before, false) => self.nic.set_spread(before),
            Undo::Unbind => {
                self.nic.unbind();
                Ok(())
            }
            Undo::Context(context) => self.nic.drop_context(*context),
            Undo::Rule(place) => self.nic.drop_rule(*place),
        }
    }
}

impl<N: Nic> Drop for Setup<N> {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// The kernel's words, and what is lacking if they are that one may not.
fn said(why: &Refused) -> String {
    match why.errno {
        rustix::io::Errno::PERM => format!("{why}: it takes CAP_NET_ADMIN"),
        _ => why.to_string(),
    }
}

/// A table with `entries` entries, in which each of the `queues` queues is equally frequent.
fn equal(entries: usize, first: u32, queues: u32) -> Vec<u32> {
    (first..first.saturating_add(queues))
        .cycle()
        .take(entries)
        .collect()
}

/// The command that takes a change back.
fn by_hand(undo: &Undo, name: &str) -> String {
    match undo {
        Undo::Rings(before) => {
            let split = match before.split {
                Some(1) => " tcp-data-split off",
                Some(2) => " tcp-data-split on",
                _ => " tcp-data-split auto",
            };
            let from = before.from.map(|bytes| format!(" hds-thresh {bytes}"));
            format!("ethtool -G {name}{split}{}", from.unwrap_or_default())
        }
        Undo::Rules => format!("ethtool -K {name} ntuple off"),
        Undo::Spread(_, true) => format!("ethtool -X {name} default"),
        Undo::Spread(before, false) => {
            format!("ethtool -X {name} default, or the table that it had: {before:?}")
        }
        Undo::Unbind => format!("the binding of {name}: it ends with this process"),
        Undo::Context(context) => format!("ethtool -X {name} context {context} delete"),
        Undo::Rule(place) => format!("ethtool -N {name} delete {place}"),
    }
}
