//! Mirrored volumes: the copies in two stores are one md RAID1 on the node.
//!
//! **A copy is used alone only if its own superblock says that the other one was left behind.** md writes that into the copy
//! that it goes on with. A copy that was left behind knows nothing of it: it still says that both are up to date, so it is
//! never started alone, and nothing that the other one has got since can be lost. At most one of the two can say so of the
//! other, until both have been brought together again.
//!
//! What a copy says is in the copy, and what is assembled is in `/sys`: nothing else is remembered that decides anything.

mod notes;
mod plan;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::Status;

pub(super) use self::notes::Notes;
use self::plan::{Refusal, Start, plan};
use super::array::{Array, State};
use super::format::{size, wait_for_size};
use super::mapping::{Mapped, Wanted};
use super::present::{Copy, Present};
use super::superblock::Beginning;
use super::{Node, Use, mounts};
use crate::fault::step;
use crate::size::MIRROR;
use crate::volume_id::VolumeId;

/// How long the server of a copy may be away until the copy is given up. Restarted servers are back sooner.
const AWAY: Duration = Duration::from_secs(3);
/// How long md may take to give a copy up: it may itself wait for the server.
const MOMENT: Duration = Duration::from_secs(1);
/// How long a call waits for somebody who looks after the mirror: a mapping may take its time, and so may md.
pub(super) const PATIENCE: Duration = Duration::from_secs(12);
/// How often mirrors are looked after.
const LOOK: Duration = Duration::from_secs(1);

impl Node {
    /// Maps the copies and starts their mirror, as far as that is not done. Returns its device.
    pub(super) fn bring_mirror(&self, used: &Use) -> Result<PathBuf, Status> {
        self.notes.remember(&used.id, &used.wanted);
        let mut present = self.present(&used.id)?;
        if is_taken(&present) {
            self.end_dead(&mut present)?;
        }
        let away = self.map_copies(&mut present, &used.wanted);
        step("stage: copies mapped");
        present.look();
        if !has_copy(&present) {
            // A copy whose server is away may be resumed later, with what waits for it.
            if let Some(why) = away.first().filter(|_| present.running().is_some()) {
                return Err(why.clone());
            }
            self.end_dead(&mut present)?;
        }
        let array = match present.running() {
            Some(array) => array.clone(),
            None => match start(&present, away) {
                Ok(array) => array,
                Err(why) => {
                    self.end_attempt(&mut present)?;
                    return Err(why);
                }
            },
        };
        step("stage: mirror started");
        self.mend(&present, &array);
        Ok(array.device)
    }

    /// Leaves no copy mapped that could not be started: whoever else assembles what he sees on this node must not find it.
    fn end_attempt(&self, present: &mut Present) -> Result<(), Status> {
        present.look();
        match &present.array {
            // Somebody else was faster, with both.
            Some(array) if array.runs => return Ok(()),
            Some(half) => half.stop()?,
            None => {}
        }
        self.unmap_copies(present)
    }

    /// Maps what can be mapped. Returns why the others cannot.
    fn map_copies(&self, present: &mut Present, wanted: &Wanted) -> Vec<Status> {
        let mut away = Vec::new();
        for copy in &mut present.copies {
            if copy.mapped.as_ref().is_some_and(|one| !one.is_over()) {
                continue;
            }
            match self.map_copy(copy, wanted) {
                Ok(mapped) => copy.mapped = mapped,
                Err(why) => {
                    copy.mapped = None;
                    let store = copy.id.store();
                    away.push(Status::unavailable(format!(
                        "store {store}: {}",
                        why.message()
                    )));
                }
            }
        }
        away
    }

    fn map_copy(&self, copy: &Copy, wanted: &Wanted) -> Result<Option<Mapped>, Status> {
        if let Some(over) = &copy.mapped {
            // The copy was taken from this node, and is published to it again.
            self.leave(&copy.id, over)?;
        }
        self.memlane.map(&self.id, &copy.id, wanted)?;
        self.memlane.find(&self.id, &copy.id)
    }

    /// Takes a mapping that has failed out of the mirror, if it is in one that goes on, and ends it.
    fn leave(&self, copy: &VolumeId, mapped: &Mapped) -> Result<(), Status> {
        if let Some(device) = mounts::device_number(&mapped.shown_as)
            && let Some(array) = Array::find(&copy.identity(), &[device])
            && let Some(member) = array.member(device)
        {
            array.expel(member)?;
        }
        self.memlane.unmap(mapped, true)
    }

    /// Ends a mirror that has no copy any more.
    fn end_dead(&self, present: &mut Present) -> Result<(), Status> {
        let Some(array) = &present.array else {
            return Ok(());
        };
        if let Some(device) = mounts::device_number(&array.device) {
            for mount in mounts::of_device(device)? {
                mounts::unmount_dead(&mount.point)?;
            }
        }
        array.stop().map_err(|why| {
            let why = why.message();
            Status::unavailable(format!(
                "the mirror lost both copies, and is still in use: {why}"
            ))
        })?;
        present.array = None;
        Ok(())
    }

    /// Ends the mirror of a volume that nobody uses any more, and the mappings of its copies.
    pub(super) fn end_mirror(&self, present: &Present) -> Result<(), Status> {
        if let Some(array) = &present.array {
            array.stop()?;
        }
        step("unstage: mirror stopped");
        self.unmap_copies(present)?;
        self.notes.forget(&present.id);
        Ok(())
    }

    fn unmap_copies(&self, present: &Present) -> Result<(), Status> {
        for mapped in present
            .copies
            .iter()
            .filter_map(|copy| copy.mapped.as_ref())
        {
            // The mirror has been stopped, so all is written that can be written.
            self.memlane.unmap(mapped, true)?;
        }
        Ok(())
    }

    /// Looks after the mirrors of this node until the process ends.
    pub async fn watch_mirrors(self: Arc<Node>) {
        loop {
            let node = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || node.look_after_mirrors()).await;
            if let Ok(Err(why)) = looked {
                eprintln!("memlane-csi: looking after mirrors: {}", why.message());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Gives up a copy whose server is away, and takes back one whose server is back.
    fn look_after_mirrors(&self) -> Result<(), Status> {
        if !Array::is_any() {
            return Ok(());
        }
        let all = self.all_present()?.into_iter();
        for seen in all.filter(|seen| seen.running().is_some()) {
            // A call works on it at this moment, and looks after it.
            let Ok(_working) = self.busy.begin(&mended(&seen.id.to_string())) else {
                continue;
            };
            // A call may have ended it before.
            let mut present = self.present(&seen.id)?;
            if let Some(array) = present.running().cloned() {
                self.give_up(&present, &array);
                self.map_again(&mut present);
                self.mend(&present, &array);
            }
        }
        Ok(())
    }

    /// Maps a copy of a mirror that runs, if no process shows it, or if its store had given it to nobody.
    fn map_again(&self, present: &mut Present) {
        if !has_copy(present) {
            return;
        }
        for copy in &mut present.copies {
            let ends = copy.mapped.as_ref().is_none_or(Mapped::is_over);
            if !ends || !self.notes.may_try(&copy.id) {
                continue;
            }
            if let Some(wanted) = self.notes.wanted(&copy.id) {
                let mapped = self.map_copy(copy, &wanted);
                copy.mapped = mapped.as_ref().ok().cloned().flatten();
                self.say(&copy.id, mapped.map(drop));
            }
        }
    }

    /// Gives up a copy whose server is away, so that the other one is told before requests to this one fail.
    fn give_up(&self, present: &Present, array: &Array) {
        let (lost, good): (Vec<&Copy>, Vec<&Copy>) = present
            .copies
            .iter()
            .filter(|copy| in_sync(array, copy))
            .partition(|copy| !copy.works());
        for copy in &good {
            self.notes.away(&copy.id, false);
        }
        for copy in lost {
            let since = self.notes.away(&copy.id, true);
            if let Some(mapped) = copy.mapped.as_ref()
                && since >= AWAY
                && !good.is_empty()
            {
                self.say(&copy.id, self.drop_copy(array, copy, mapped));
            }
        }
    }

    /// Has md give a copy up, and only then fails what still waits for its server, by ending the mapping. The copy is mapped
    /// again when the server is back.
    fn drop_copy(&self, array: &Array, copy: &Copy, mapped: &Mapped) -> Result<(), Status> {
        let device = mapped.shown_as.as_path();
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| array.fail(device));
            let begin = Instant::now();
            while !failing.is_finished() && begin.elapsed() < MOMENT {
                std::thread::sleep(Duration::from_millis(10));
            }
            // A plugin that was started again does not know yet how to map the copy: its requests fail by themselves.
            let ends = self.notes.wanted(&copy.id).is_some();
            let ended = if ends {
                self.memlane.unmap(mapped, true)
            } else {
                Ok(())
            };
            let failed = failing.join();
            failed.unwrap_or_else(|_| Err(Status::internal("mdadm was not run")))?;
            ended?;
            if ends { array.remove(device) } else { Ok(()) }
        })
    }

    /// Takes into the mirror what belongs there, and out of it what has ended. What cannot be done now is tried again.
    fn mend(&self, present: &Present, array: &Array) {
        if !has_copy(present) {
            return;
        }
        let known: Vec<u64> = present.devices();
        let strangers = array
            .members
            .iter()
            .filter(|one| one.device.is_none_or(|device| !known.contains(&device)));
        for member in strangers {
            // Its mapping was killed, and another device has taken its place.
            let _ = array.expel(member);
        }
        for copy in &present.copies {
            let Some(mapped) = copy.mapped.as_ref() else {
                continue;
            };
            let state = copy
                .device()
                .and_then(|device| array.member(device))
                .map(|one| one.state);
            if matches!(state, Some(State::InSync | State::Behind)) {
                self.notes.refuses(&copy.id, None);
            } else if self.notes.may_try(&copy.id) && copy.works() {
                let taken = take(present, array, &mapped.shown_as, state);
                self.say(&copy.id, taken);
            }
        }
    }

    /// Notes how an attempt went.
    fn say(&self, copy: &VolumeId, done: Result<(), Status>) {
        if let Err(why) = &done {
            eprintln!("memlane-csi: copy {copy}: {}", why.message());
        }
        self.notes
            .refuses(copy, done.err().map(|why| why.message().to_owned()));
    }

    /// Makes the mirror as large as both copies have become. Returns the size of its device.
    pub(super) fn grow_mirror(&self, present: &Present, least: u64) -> Result<u64, Status> {
        let array = present.running().ok_or_else(|| no_mirror(&present.id))?;
        for copy in &present.copies {
            let Some(mapped) = copy.mapped.as_ref().filter(|_| in_sync(array, copy)) else {
                let store = copy.id.store();
                return Err(Status::unavailable(format!(
                    "the copy in store {store} is not up to date: the volume grows when both are"
                )));
            };
            wait_for_size(&mapped.shown_as, least + MIRROR)?;
        }
        if size(&array.device)? < least || least == 0 {
            array.grow()?;
        }
        wait_for_size(&array.device, least)
    }
}

/// What is busy while the mirror of a volume is changed.
pub(super) fn mended(named: &str) -> String {
    format!("the mirror of {named}")
}

fn in_sync(array: &Array, copy: &Copy) -> bool {
    let member = copy.device().and_then(|device| array.member(device));
    let is_over = copy.mapped.as_ref().is_none_or(Mapped::is_over);
    !is_over && member.is_some_and(|one| one.state == State::InSync)
}

/// Whether the mirror runs, with a copy that may still be used.
fn has_copy(present: &Present) -> bool {
    let array = present.running();
    array.is_some_and(|array| present.copies.iter().any(|copy| in_sync(array, copy)))
}

/// Whether all that is left of a mirror was taken from this node. (A mapping that was killed may be resumed.)
fn is_taken(present: &Present) -> bool {
    let Some(array) = &present.array else {
        return false;
    };
    let is_over = |device: Option<u64>| {
        let copy = present.copies.iter().find(|copy| copy.device() == device);
        copy.and_then(|copy| copy.mapped.as_ref())
            .is_some_and(Mapped::is_over)
    };
    let mut left = array
        .members
        .iter()
        .filter(|one| one.state == State::InSync);
    left.all(|one| one.device.is_some() && is_over(one.device))
}

fn no_mirror(id: &VolumeId) -> Status {
    Status::not_found(format!(
        "the mirror of volume {id} does not run on this node"
    ))
}

/// Starts the mirror of the copies that are mapped. `away` says why others are not.
fn start(present: &Present, mut away: Vec<Status>) -> Result<Array, Status> {
    let id = &present.id;
    let uuid = id.identity();
    let mut found = Vec::new();
    for copy in &present.copies {
        let read = copy.path().map(|device| beginning(device, &uuid));
        // A copy that cannot be read is away, too.
        found.push(read.and_then(|read| read.map_err(|why| away.push(why)).ok()));
    }
    let devices: Vec<&Path> = present.copies.iter().filter_map(Copy::path).collect();
    let wanted = plan(&found).map_err(|why| refused(id, why, &away))?;
    match wanted {
        Start::New => {
            Array::create(&uuid, &devices)?;
            step("stage: mirror made");
            Array::start(&uuid, &devices)?;
        }
        Start::Both => Array::start(&uuid, &devices)?,
        Start::Alone(number) => {
            let device = present.copies[number].path();
            Array::start(&uuid, device.as_slice())?;
        }
    }
    Array::find(&uuid, &present.devices()).ok_or_else(|| no_mirror(id))
}

/// What lies at the beginning of a copy. A superblock of another mirror is something strange.
fn beginning(device: &Path, uuid: &[u8; 16]) -> Result<Beginning, Status> {
    let read = Beginning::read(device);
    let read =
        read.map_err(|error| Status::unavailable(format!("{}: {error}", device.display())))?;
    Ok(match read {
        Beginning::Member(other) if other.uuid != *uuid => Beginning::Strange,
        known => known,
    })
}

fn refused(id: &VolumeId, why: Refusal, away: &[Status]) -> Status {
    let mut missing = String::new();
    for one in away {
        let _ = write!(missing, " ({})", one.message());
    }
    match why {
        Refusal::MayBeOld => Status::unavailable(format!(
            "volume {id} has one copy in reach, which does not know whether the other one is newer: it waits until both can be reached{missing}"
        )),
        Refusal::Strange => Status::failed_precondition(format!(
            "a copy of volume {id} has something on it that is not of its mirror"
        )),
        Refusal::Apart => Status::failed_precondition(format!(
            "both copies of volume {id} have been used without the other: somebody has to choose one, and to empty the other"
        )),
        Refusal::Incomplete => {
            Status::data_loss(format!("no copy of volume {id} in reach is complete"))
        }
    }
}

/// Takes a copy into a mirror that runs. `state`: what it is there already.
fn take(
    present: &Present,
    array: &Array,
    device: &Path,
    state: Option<State>,
) -> Result<(), Status> {
    let uuid = present.id.identity();
    match beginning(device, &uuid)? {
        Beginning::Strange => Err(refused(&present.id, Refusal::Strange, &[])),
        Beginning::Blank => {
            remove_faulty(array, device, state)?;
            array.add(device)
        }
        Beginning::Member(own) => {
            let running = present.copies.iter().filter(|copy| in_sync(array, copy));
            let mut running = running.filter_map(Copy::path);
            let is_older = running.any(|path| {
                matches!(beginning(path, &uuid), Ok(Beginning::Member(newest)) if newest.events >= own.events)
            });
            if own.is_ahead() || !is_older {
                return Err(refused(&present.id, Refusal::Apart, &[]));
            }
            remove_faulty(array, device, state)?;
            if array.add_again(device).is_ok() {
                return Ok(());
            }
            // It has never been complete, so that not only what changed is missing.
            Array::forget(device)?;
            array.add(device)
        }
    }
}

fn remove_faulty(array: &Array, device: &Path, state: Option<State>) -> Result<(), Status> {
    match state {
        Some(_) => array.remove(device),
        None => Ok(()),
    }
}
