//! One thread's service: what sessions ask, done.

use super::registry::{Denied, Opener, Party, may_join};
use super::shared::{Lend, Shared};
use crate::names::Found;
use crate::store::wakeup::Wakeup;
use crate::store::{Backing, Completion, Engine, Key, Mode, StoreRequest};
use crate::volume::{EXTENT_LEN, Errno, Flags, Op};
use crate::wire::{
    self, Access, Busy, CAP_BOOT_ID, CAP_EXTENTS, CAP_FAST_ZERO, CAP_LOAN, CAP_NOTICE,
    CAP_TAKE_OVER, CAPS, IoMsg, Message, Open, OpenRsp, SECTOR, SessInfo, SessInfoRsp, VERSION,
    Wish,
};
use memlane_core::access::SharedBytes;
use memlane_transport::engine::Direction;
use memlane_transport::engine::server::{Job, SessionId};
use memlane_transport::io::tls::stands_for;
use memlane_transport::port::{Finished, Identity, Service};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A session, as the block lane knows it.
#[derive(Debug)]
struct Session {
    party: Arc<Party>,
    /// What both ends can do beyond mainline.
    caps: u16,
    /// Device ids, and the devices' places.
    devices: BTreeMap<u32, usize>,
    /// What is open under which name.
    names: HashMap<(String, Access), usize>,
}

/// A volume that a session has open; closed when dropped.
#[derive(Debug)]
struct Device {
    shared: Arc<Shared>,
    session: SessionId,
    opener: Arc<Opener>,
    /// Requests under way.
    under_way: usize,
    /// No more requests; goes when none is under way. These wait for that.
    closing: Option<Vec<Ticket>>,
    /// The backing's count of changes that the client knows.
    told: u64,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.registry().close(&self.opener);
    }
}

/// Whom to tell.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    session: SessionId,
    permit: u16,
    generation: u64,
}

impl Ticket {
    fn of(job: &Job) -> Ticket {
        Ticket {
            session: job.session,
            permit: job.permit,
            generation: job.generation,
        }
    }

    fn finished(self, result: Result<(), Errno>) -> Finished {
        let errno = result.err().map_or(0, |Errno(errno)| errno);
        Finished {
            session: self.session,
            permit: self.permit,
            generation: self.generation,
            errno: u16::try_from(errno).unwrap_or(5),
        }
    }
}

/// A request that the engine has.
#[derive(Debug)]
struct Running {
    ticket: Ticket,
    device: usize,
    op: Op,
    at: u64,
    len: u32,
}

/// How a request went so far.
enum Begun {
    Done,
    /// The engine will tell.
    Running,
    /// The device's end will tell.
    Closing,
}

/// What one thread serves volumes with.
pub struct BlockService {
    // First: it ends only when nothing is under way any more, and only then are the devices closed.
    engine: Engine,
    shared: Arc<Shared>,
    sessions: BTreeMap<SessionId, Session>,
    devices: Places<Device>,
    running: Places<Running>,
    completions: Vec<Completion>,
    done: Vec<Finished>,
    /// [`Shared`]'s count of changes when devices were looked at.
    looked: u64,
}

/// Made here, used there.
const _: () = {
    const fn goes_to_another_thread<T: Send>() {}
    goes_to_another_thread::<BlockService>();
};

impl Shared {
    /// A service for one thread.
    ///
    /// # Errors
    /// Descriptors are used up; no `io_uring` where one was asked for.
    pub fn service(self: &Arc<Self>) -> io::Result<BlockService> {
        let service = BlockService::new(Arc::clone(self))?;
        self.tell_by(&service.wakeup());
        Ok(service)
    }
}

impl BlockService {
    fn new(shared: Arc<Shared>) -> io::Result<BlockService> {
        Ok(BlockService {
            engine: Engine::new(shared.config.store)?,
            looked: shared.changed.load(Ordering::Acquire),
            shared,
            sessions: BTreeMap::new(),
            devices: Places::default(),
            running: Places::default(),
            completions: Vec::new(),
            done: Vec::new(),
        })
    }

    /// What it has in common with the others of this process.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn refuse(&self, session: &str, why: &str) -> bool {
        let mut registry = self.shared.registry();
        registry.refused(session, "", Errno(libc::EACCES), why.to_owned());
        false
    }

    fn wakeup(&self) -> Arc<Wakeup> {
        self.engine.wakeup()
    }

    fn begin(&mut self, job: &Job, chunk: SharedBytes) -> Result<Begun, Errno> {
        match Message::decode(&job.usr).map_err(|_| Errno::INVAL)? {
            Message::Io(io) => self.begin_io(job, chunk, &io),
            Message::SessInfo(info) => self.sess_info(job, chunk, info),
            Message::Open(open) => self.open(job, chunk, open),
            Message::Close(close) => self.close(job, close.device_id),
        }
    }

    // ---- sessions and devices ----

    fn sess_info(&mut self, job: &Job, chunk: SharedBytes, info: SessInfo) -> Result<Begun, Errno> {
        let boot = self.shared.boot;
        let lend = self.shared.config.lend;
        let session = self
            .sessions
            .get_mut(&job.session)
            .ok_or(Errno(libc::EACCES))?;
        let lacks = |has: bool, cap: u16| if has { 0 } else { cap };
        let may_borrow = lend != Lend::Never && session.party.may_borrow();
        let ours = CAPS & !lacks(boot.is_some(), CAP_BOOT_ID) & !lacks(may_borrow, CAP_LOAN);
        session.caps = info.caps & ours;
        let can_lose = session.caps & CAP_TAKE_OVER != 0;
        session.party.can_lose.store(can_lose, Ordering::Relaxed);
        let rsp = SessInfoRsp {
            version: info.version.min(VERSION),
            caps: session.caps,
            boot: boot.unwrap_or_default(),
        };
        answer(job, chunk, &rsp.encode())
    }

    fn open(&mut self, job: &Job, chunk: SharedBytes, open: Open) -> Result<Begun, Errno> {
        let id = job.session;
        let session = self.sessions.get(&id).ok_or(Errno(libc::EACCES))?;
        let opened = self.find_or_open(id, session, &open);
        let at = match opened {
            Ok(Ok(at)) => at,
            Ok(Err(opener)) => self.add_device(id, open.access, opener),
            Err(no) => {
                let mut registry = self.shared.registry();
                registry.refused(&session.party.name, &open.name, no.errno, no.why);
                let told = session.caps & CAP_TAKE_OVER != 0;
                return match no.holder.filter(|_| told) {
                    Some(busy) => answer(job, chunk, &busy.encode()),
                    None => Err(no.errno),
                };
            }
        };
        let session = self.sessions.get(&id).ok_or(Errno(libc::EACCES))?;
        let device = self.devices.get_mut(at).ok_or(Errno(libc::ENODEV))?;
        let backing = &device.opener.backing;
        // In this order: what changes from now on is reported later.
        device.told = backing.changes();
        let mut info = backing.info(self.shared.config.max_io);
        if open.access == Access::ReadOnly {
            (info.read_only, info.trim, info.zeroes, info.max_trim) = (true, false, false, 0);
        }
        let mut rsp = OpenRsp::of(device.opener.id, &info, session.caps);
        if session.caps & CAP_LOAN != 0
            && let Some(handover) = self.shared.config.lend.handover()
        {
            let registry = self.shared.registry();
            rsp.loan = registry.offer(&device.opener, info.size, handover);
        }
        answer(job, chunk, &rsp.encode())
    }

    /// The place of what this session has open under the name, or a new opener, or why not.
    fn find_or_open(
        &self,
        id: SessionId,
        session: &Session,
        open: &Open,
    ) -> Result<Result<usize, Arc<Opener>>, Refused> {
        let plain = |errno: i32, why: &str| Refused::new(Errno(errno), why.to_owned());
        let named = |why: crate::names::NameError| Refused::new(why.errno(), why.to_string());
        let (names, party) = (&self.shared.names, &session.party);
        let full = names.full(&party.name, &open.name).map_err(named)?;
        if let Some(at) = session.names.get(&(full.clone(), open.access)) {
            let there = self
                .devices
                .get(*at)
                .is_some_and(|device| device.session == id);
            if there {
                let opener = self.devices.get(*at).map(|device| &device.opener);
                opener.inspect(|opener| _ = opener.backing.look());
                return Ok(Ok(*at));
            }
        }
        let wish = match session.caps & CAP_TAKE_OVER {
            0 => Wish::default(),
            _ => open.wish,
        };
        if let Some(before) = wish.again
            && self.shared.registry().was_taken(before, &full)
        {
            return Err(plain(libc::ESTALE, "it was taken from this session"));
        }
        if session.devices.len() >= self.shared.config.volumes {
            return Err(plain(libc::EMFILE, "the session has too many volumes open"));
        }
        let found = names.find(&party.name, &open.name).map_err(named)?;
        let backing = self.backing(found, &full, open.access).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            Refused::new(Errno(errno), error.to_string())
        })?;
        let mut registry = self.shared.registry();
        // Two that open memory at the same time have the same one.
        let backing = match backing.key() {
            Key::Test(_) => registry.existing(backing.key()).unwrap_or(backing),
            _ => backing,
        };
        let key = backing.key().clone();
        match registry.open(party, full, open.access, backing) {
            Ok(opener) => Ok(Err(opener)),
            Err(Denied::Full) => Err(plain(libc::ENFILE, "no device ids are left")),
            Err(Denied::Ending) => Err(ending(session)),
            Err(Denied::Busy(holder)) if !wish.take_over => Err(Refused::held(&holder.party)),
            Err(Denied::Busy(_)) => match registry.take_over(&key, open.access, party) {
                Err(holder) => Err(Refused::held(&holder.party)),
                Ok(()) => {
                    drop(registry);
                    // The thread that serves them releases it; the next try finds it free.
                    self.shared.tell_services();
                    Err(ending(session))
                }
            },
        }
    }

    fn backing(&self, found: Found, full: &str, access: Access) -> io::Result<Arc<Backing>> {
        let existing = || {
            let key = Key::Test(full.to_owned());
            self.shared.registry().existing(&key)
        };
        let mode = match access {
            Access::ReadOnly => Mode::Read,
            Access::ReadWrite => Mode::Claim,
            Access::Migration => Mode::Share,
        };
        let backing = match found {
            Found::Path(path) => Backing::open(path.as_fd(), mode, self.shared.config.direct)?,
            Found::Memory(size) => match existing() {
                Some(backing) => return Ok(backing),
                None if self.shared.config.lend == Lend::Never => Backing::memory(size, full)?,
                None => Backing::memory_to_lend(size, full)?,
            },
            Found::Nothing(size) => Backing::nothing(size, full)?,
        };
        Ok(Arc::new(backing))
    }

    fn add_device(&mut self, id: SessionId, access: Access, opener: Arc<Opener>) -> usize {
        let (number, name) = (opener.id, opener.name.clone());
        let at = self.devices.put(Device {
            shared: Arc::clone(&self.shared),
            session: id,
            told: opener.backing.changes(),
            opener,
            under_way: 0,
            closing: None,
        });
        if let Some(session) = self.sessions.get_mut(&id) {
            session.devices.insert(number, at);
            session.names.insert((name, access), at);
        }
        at
    }

    fn close(&mut self, job: &Job, device_id: u32) -> Result<Begun, Errno> {
        let session = self.sessions.get(&job.session).ok_or(Errno(libc::EACCES))?;
        let at = *session.devices.get(&device_id).ok_or(Errno(libc::ENODEV))?;
        self.forget(at, Some(Ticket::of(job)));
        Ok(Begun::Closing)
    }

    /// Ends requests for a device. A caller that waits learns when the device is gone.
    fn forget(&mut self, at: usize, waits: Option<Ticket>) {
        let Some(device) = self.devices.get_mut(at) else {
            return;
        };
        device.closing.get_or_insert_default().extend(waits);
        let (id, session) = (device.opener.id, device.session);
        let key = (device.opener.name.clone(), device.opener.access);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.devices.remove(&id);
            session.names.remove(&key);
        }
        self.end_if_idle(at);
    }

    fn end_if_idle(&mut self, at: usize) {
        let idle = |device: &Device| device.under_way == 0 && device.closing.is_some();
        if !self.devices.get(at).is_some_and(idle) {
            return;
        }
        if let Some(mut device) = self.devices.take(at) {
            let waiting = device.closing.take().unwrap_or_default();
            // It is closed before anyone learns of it.
            drop(device);
            self.done
                .extend(waiting.iter().map(|ticket| ticket.finished(Ok(()))));
        }
    }

    // ---- requests ----

    fn begin_io(&mut self, job: &Job, chunk: SharedBytes, io: &IoMsg) -> Result<Begun, Errno> {
        let session = self.sessions.get(&job.session).ok_or(Errno(libc::EACCES))?;
        let at = *session
            .devices
            .get(&io.device_id)
            .ok_or(Errno(libc::ENODEV))?;
        let caps = session.caps;
        let device = self.devices.get_mut(at).ok_or(Errno(libc::ENODEV))?;
        let opener = &device.opener;
        if opener.revoked.load(Ordering::Acquire) {
            return Err(Errno(libc::ENODEV));
        }
        let first = match io.op {
            // Mainline's client says 2^64 − 1: the kernel gives a flush no place.
            Op::Flush => Some(0),
            _ => io.sector.checked_mul(SECTOR.into()),
        };
        let checked = first.ok_or(Errno::INVAL).and_then(|first| {
            let data = check(job, chunk, io, caps, opener.access)?;
            opener.backing.check(io.op, first, io.len)?;
            Ok((first, data))
        });
        let (first, data) = checked.inspect_err(|errno| {
            let first = first.unwrap_or(u64::MAX);
            opener.counts.add(io.op, io.len, false);
            // A request that makes no sense says nothing about the volume.
            if *errno != Errno::INVAL {
                opener.backing.failed(io.op, first, io.len, *errno);
            }
        })?;
        device.under_way += 1;
        let backing = Arc::clone(&opener.backing);
        let id = self.running.put(Running {
            ticket: Ticket::of(job),
            device: at,
            op: io.op,
            at: first,
            len: io.len,
        });
        self.engine.submit(StoreRequest {
            id: id as u64,
            backing,
            op: io.op,
            at: first,
            len: io.len,
            flags: io.flags,
            data,
        });
        Ok(Begun::Running)
    }

    fn on_completion(&mut self, completion: Completion) {
        let id = usize::try_from(completion.id).unwrap_or(usize::MAX);
        let Some(running) = self.running.take(id) else {
            return;
        };
        self.done.push(running.ticket.finished(completion.result));
        let Some(device) = self.devices.get_mut(running.device) else {
            return;
        };
        device.under_way -= 1;
        let opener = &device.opener;
        let ok = completion.result.is_ok();
        opener.counts.add(running.op, running.len, ok);
        if let Err(errno) = completion.result {
            opener
                .backing
                .failed(running.op, running.at, running.len, errno);
            if opener.backing.changes() != device.told {
                self.shared.tell_services();
            }
        }
        if device.closing.is_some() {
            self.end_if_idle(running.device);
        }
    }
}

/// Why a volume is not opened, for the client and for the server's owner.
struct Refused {
    errno: Errno,
    why: String,
    /// The session that has it.
    holder: Option<Busy>,
}

impl Refused {
    fn new(errno: Errno, why: String) -> Refused {
        Refused {
            errno,
            why,
            holder: None,
        }
    }

    fn held(party: &Party) -> Refused {
        Refused {
            errno: Errno(libc::EBUSY),
            why: format!("another session, {:?}, writes it", party.name),
            holder: Some(party.busy()),
        }
    }
}

/// The last requests of who had it are not over yet.
fn ending(session: &Session) -> Refused {
    let errno = match session.caps & CAP_TAKE_OVER {
        0 => libc::EBUSY,
        _ => libc::EAGAIN,
    };
    let why = "the last requests of the session that it was taken from are not over";
    Refused::new(Errno(errno), why.to_owned())
}

/// Does the message go with the job, and may this session ask so? The memory, for what has data.
fn check(
    job: &Job,
    chunk: SharedBytes,
    io: &IoMsg,
    caps: u16,
    access: Access,
) -> Result<Option<SharedBytes>, Errno> {
    let able = |cap| caps & cap != 0;
    if (io.flags.has(Flags::FAST) && !able(CAP_FAST_ZERO))
        || (io.op == Op::Extents && !able(CAP_EXTENTS))
    {
        return Err(Errno::INVAL);
    }
    let changes = matches!(io.op, Op::Write | Op::Trim | Op::WriteZeroes);
    if changes && access == Access::ReadOnly {
        return Err(Errno(libc::EROFS));
    }
    let reads = job.direction == Direction::Read;
    let fits = match io.op {
        Op::Read => reads && job.len == io.len,
        Op::Write => !reads && job.len == io.len,
        Op::Extents => reads && job.len as usize >= EXTENT_LEN,
        Op::Flush | Op::Trim | Op::WriteZeroes => job.len == 0,
    };
    let data = chunk.part(0, job.len as usize);
    if !fits || data.is_none() {
        return Err(Errno::INVAL);
    }
    let has_data = matches!(io.op, Op::Read | Op::Write | Op::Extents);
    Ok(data.filter(|_| has_data))
}

/// Puts an answer where the client wants it, if there is room.
fn answer(job: &Job, chunk: SharedBytes, bytes: &[u8]) -> Result<Begun, Errno> {
    let room = job.direction == Direction::Read && job.len as usize >= bytes.len();
    // SAFETY: `bytes` is readable for its length.
    let told = room && unsafe { chunk.copy_in(0, bytes.as_ptr(), bytes.len()) };
    told.then_some(Begun::Done).ok_or(Errno::INVAL)
}

/// May this client have a session of this name?
///
/// A certificate that names sessions is good for these and no others. Where names open folders, one that names none is
/// good for none; and of the users of this machine, the server's own and root may have any name, others `uidN` and
/// what begins with `uidN@`.
fn may_be(who: &Identity, session: &str, opens_a_folder: bool) -> bool {
    match who {
        Identity::Certificate(names) if names.is_empty() => !opens_a_folder,
        Identity::Certificate(names) => names.iter().any(|name| stands_for(name, session)),
        Identity::Local { uid, .. } if opens_a_folder => {
            let own = rustix::process::geteuid().as_raw();
            let rest = session.strip_prefix(&format!("uid{uid}"));
            [0, own].contains(uid)
                || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
        }
        Identity::Local { .. } | Identity::Unknown => true,
    }
}

impl Service for BlockService {
    fn opened(&mut self, session: SessionId, name: &str, who: &Identity) -> bool {
        if self.shared.config.namespace.is_some() {
            // The name opens a folder: nobody else may have it.
            if self.shared.names.session(name).is_err() {
                return self.refuse(name, "the session's name cannot name a folder");
            }
        }
        if !may_be(who, name, self.shared.config.namespace.is_some()) {
            return self.refuse(name, "this client may not have a session of this name");
        }
        if let Some(known) = self.sessions.get(&session) {
            return known.party.name == name && may_join(&known.party.who, who);
        }
        self.sessions.insert(
            session,
            Session {
                party: Arc::new(Party::new(name, who)),
                caps: 0,
                devices: BTreeMap::new(),
                names: HashMap::new(),
            },
        );
        true
    }

    fn reached(&mut self, session: SessionId, paths: usize) {
        if let Some(session) = self.sessions.get(&session) {
            session.party.reached_by(paths);
        }
    }

    fn execute(&mut self, job: Job, chunk: SharedBytes) {
        match self.begin(&job, chunk) {
            Ok(Begun::Running | Begun::Closing) => {}
            Ok(Begun::Done) => self.done.push(Ticket::of(&job).finished(Ok(()))),
            Err(errno) => self.done.push(Ticket::of(&job).finished(Err(errno))),
        }
    }

    fn finished(&mut self, into: &mut Vec<Finished>) {
        let mut completions = std::mem::take(&mut self.completions);
        self.engine.complete(&mut completions);
        for completion in completions.drain(..) {
            self.on_completion(completion);
        }
        self.completions = completions;
        into.append(&mut self.done);
    }

    fn notices(&mut self, into: &mut Vec<(SessionId, u32)>) {
        let changed = self.shared.changed.load(Ordering::Acquire);
        if changed == self.looked {
            return;
        }
        self.looked = changed;
        let mut revoked = Vec::new();
        for (at, device) in self.devices.iter_mut() {
            if device.opener.revoked.load(Ordering::Acquire) {
                revoked.push(at);
            }
            let changes = device.opener.backing.changes();
            if changes != device.told {
                device.told = changes;
                let session = self.sessions.get(&device.session);
                if session.is_some_and(|session| session.caps & CAP_NOTICE != 0) {
                    into.push((device.session, wire::notice(device.opener.id)));
                }
            }
        }
        for at in revoked {
            self.forget(at, None);
        }
    }

    fn gone(&mut self, session: SessionId) {
        let Some(gone) = self.sessions.remove(&session) else {
            return;
        };
        for at in gone.devices.into_values() {
            self.forget(at, None);
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.engine.fd())
    }
}

impl std::fmt::Debug for BlockService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockService")
            .field("sessions", &self.sessions.len())
            .finish_non_exhaustive()
    }
}

/// Things with numbers that are used again.
#[derive(Debug)]
struct Places<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Places<T> {
    fn put(&mut self, thing: T) -> usize {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[at] = Some(thing);
        at
    }

    fn take(&mut self, at: usize) -> Option<T> {
        let thing = self.places.get_mut(at)?.take()?;
        self.free.push(at);
        Some(thing)
    }

    fn get(&self, at: usize) -> Option<&T> {
        self.places.get(at)?.as_ref()
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.places.get_mut(at)?.as_mut()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(at, place)| Some((at, place.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_of_a_name_is_for_who_has_proven_to_be_that() {
        let certified =
            |names: &[&str]| Identity::Certificate(names.iter().map(|&name| name.into()).collect());
        let user = |uid| Identity::Local { uid, pid: 1 };
        let own = rustix::process::geteuid().as_raw();
        for (who, name, opens, yes) in [
            (certified(&["a"]), "a", true, true),
            (certified(&["a"]), "b", true, false),
            // Also where it opens nothing: a name is a promise.
            (certified(&["a"]), "b", false, false),
            (certified(&["x", "b*"]), "bc", true, true),
            (certified(&[]), "a", true, false),
            (certified(&[]), "a", false, true),
            (user(own), "a", true, true),
            (user(0), "a", true, true),
            (user(77_001), "a", true, false),
            (user(77_001), "a", false, true),
            (user(77_001), "uid77001", true, true),
            (user(77_001), "uid77001@x", true, true),
            (user(77_001), "uid770012", true, false),
            (user(7_700), "uid77001", true, false),
        ] {
            assert_eq!(may_be(&who, name, opens), yes, "{who:?} {name} {opens}");
        }
    }

    #[test]
    fn paths_by_memory_and_by_a_network_are_of_one_session_and_users_and_ciphers_are_not_mixed() {
        let certified = Identity::Certificate(vec!["a".into()]);
        let user = |uid| Identity::Local { uid, pid: 1 };
        let unknown = Identity::Unknown;
        for (one, other, yes) in [
            (&user(7), &user(7), true),
            (&user(7), &user(8), false),
            (&user(7), &unknown, true),
            (&unknown, &unknown, true),
            (&user(7), &certified, true),
            (&certified, &certified, true),
            (&certified, &unknown, false),
        ] {
            assert_eq!(may_join(one, other), yes, "{one:?} {other:?}");
            assert_eq!(may_join(other, one), yes, "{other:?} {one:?}");
        }
    }
}
