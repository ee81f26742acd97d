//! What a transport is to a service: sessions, chunks, and results as they come.

use memlane_block::server::{BlockService, ServerConfig, Shared};
use memlane_block::volume::{Flags, Op};
use memlane_block::wire::{
    Access, Busy, CAP_LOAN, CAPS, Close, IoMsg, Open, OpenRsp, SessInfo, SessInfoRsp, VERSION, Wish,
};
use memlane_core::region::Region;
use memlane_transport::engine::Direction;
use memlane_transport::engine::server::{Job, SessionId};
use memlane_transport::port::{Finished, Identity, Service as _};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const CHUNK: usize = 128 << 10;
pub(crate) const CHUNKS: u16 = 64;
pub(crate) const SOMEBODY: Identity = Identity::Local { uid: 0, pid: 8 };

/// A folder that goes with its owner.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        Folder::below(&std::env::temp_dir(), name)
    }

    pub(crate) fn below(dir: &Path, name: &str) -> Folder {
        let path = dir.join(format!("memlane-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    pub(crate) fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(size).expect("its size");
        path
    }

    pub(crate) fn config(&self) -> ServerConfig {
        ServerConfig::new(self.0.clone())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a transport is to a service: sessions, chunks, and results as they come.
pub(crate) struct Driver {
    // Before the chunks: it has their addresses.
    pub(crate) service: BlockService,
    chunks: Region,
    next: u16,
    sessions: u64,
    pub(crate) finished: Vec<Finished>,
}

impl Driver {
    pub(crate) fn new(shared: &Arc<Shared>) -> Driver {
        Driver {
            service: shared.service().expect("a service"),
            chunks: Region::create(c"test-chunks", CHUNK * CHUNKS as usize, false).expect("memory"),
            next: 0,
            sessions: 0,
            finished: Vec::new(),
        }
    }

    pub(crate) fn of(config: ServerConfig) -> Driver {
        Driver::new(&Shared::new(config).expect("a server"))
    }

    /// A session that can do all that this version can.
    pub(crate) fn session(&mut self, name: &str) -> SessionId {
        self.session_of(name, &SOMEBODY)
    }

    /// A session of this user that can do all that this version can.
    pub(crate) fn session_of(&mut self, name: &str, who: &Identity) -> SessionId {
        self.sessions += 1;
        let id = SessionId(self.sessions);
        assert!(self.service.opened(id, name, who));
        let info = SessInfo {
            version: VERSION,
            caps: CAPS,
        };
        let bytes = self.read(id, &info.encode(), 36).expect("an answer");
        let rsp = SessInfoRsp::decode(&bytes).expect("a response");
        // Few servers lend.
        assert_eq!((rsp.version, rsp.caps | CAP_LOAN), (VERSION, CAPS));
        id
    }

    /// One that said nothing of itself.
    pub(crate) fn bare_session(&mut self, name: &str) -> SessionId {
        self.sessions += 1;
        let id = SessionId(self.sessions);
        assert!(self.service.opened(id, name, &SOMEBODY));
        id
    }

    pub(crate) fn begin(
        &mut self,
        session: SessionId,
        direction: Direction,
        usr: &[u8],
        len: u32,
    ) -> u16 {
        let permit = self.next;
        self.next = (self.next + 1) % CHUNKS;
        let job = Job {
            session,
            permit,
            generation: 1,
            direction,
            len,
            usr: usr.into(),
        };
        let chunk = self.chunks.bytes().part(usize::from(permit) * CHUNK, CHUNK);
        self.service.execute(job, chunk.expect("a chunk"));
        permit
    }

    pub(crate) fn end(&mut self, permit: u16) -> u16 {
        loop {
            let found = self.finished.iter().position(|done| done.permit == permit);
            if let Some(at) = found {
                return self.finished.swap_remove(at).errno;
            }
            if !self.look() {
                let fd = self.service.fd().expect("something is under way");
                let limit = Timespec {
                    tv_sec: 20,
                    tv_nsec: 0,
                };
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                let woken = rustix::event::poll(&mut fds, Some(&limit));
                assert_ne!(woken, Ok(0), "nothing came for permit {permit}");
            }
        }
    }

    pub(crate) fn look(&mut self) -> bool {
        let before = self.finished.len();
        self.service.finished(&mut self.finished);
        self.finished.len() > before
    }

    pub(crate) fn read(
        &mut self,
        session: SessionId,
        usr: &[u8],
        len: u32,
    ) -> Result<Vec<u8>, i32> {
        let permit = self.begin(session, Direction::Read, usr, len);
        match self.end(permit) {
            0 => Ok(self.chunk(permit, len as usize)),
            errno => Err(errno.into()),
        }
    }

    pub(crate) fn chunk(&self, permit: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let at = usize::from(permit) * CHUNK;
        // SAFETY: `bytes` is as long.
        assert!(unsafe { self.chunks.bytes().copy_out(at, bytes.as_mut_ptr(), len) });
        bytes
    }

    pub(crate) fn write(&mut self, session: SessionId, usr: &[u8], data: &[u8]) -> Result<(), i32> {
        let at = usize::from(self.next) * CHUNK;
        // SAFETY: `data` is as long.
        assert!(unsafe { self.chunks.bytes().copy_in(at, data.as_ptr(), data.len()) });
        let len = u32::try_from(data.len()).expect("short");
        let permit = self.begin(session, Direction::Write, usr, len);
        match self.end(permit) {
            0 => Ok(()),
            errno => Err(errno.into()),
        }
    }

    pub(crate) fn open(
        &mut self,
        session: SessionId,
        name: &str,
        access: Access,
    ) -> Result<OpenRsp, i32> {
        self.wish(session, name, access, Wish::default())
            .map_err(|(errno, _)| errno)
    }

    /// Opens with a wish; if it is refused: why, and who has the volume, if that was told.
    pub(crate) fn wish(
        &mut self,
        session: SessionId,
        name: &str,
        access: Access,
        wish: Wish,
    ) -> Result<OpenRsp, (i32, Option<Busy>)> {
        let open = Open {
            wish,
            ..Open::new(access, name)
        };
        let usr = open.encode().expect("a name");
        let bytes = self
            .read(session, &usr, 56)
            .map_err(|errno| (errno, None))?;
        if Busy::is_meant(&bytes) {
            let busy = Busy::decode(&bytes).expect("who has it");
            return Err((libc::EBUSY, Some(busy)));
        }
        Ok(OpenRsp::decode(&bytes).expect("a response"))
    }

    /// Says how many paths of a session are up.
    pub(crate) fn reached(&mut self, session: SessionId, paths: usize) {
        self.service.reached(session, paths);
    }

    pub(crate) fn close(&mut self, session: SessionId, device_id: u32) -> Result<(), i32> {
        self.write(session, &Close { device_id }.encode(), &[])
    }

    pub(crate) fn refusals(&self) -> Vec<(String, String)> {
        let refusals = self.service.shared().snapshot().refusals.into_iter();
        refusals
            .map(|refusal| (refusal.name, refusal.why))
            .collect()
    }

    pub(crate) fn notices(&mut self) -> Vec<(SessionId, u32)> {
        let mut notices = Vec::new();
        self.service.notices(&mut notices);
        notices
    }
}

pub(crate) fn io(device_id: u32, op: Op, at: u64, len: u32) -> IoMsg {
    IoMsg {
        device_id,
        sector: at / 512,
        op,
        flags: Flags::NONE,
        len,
        prio: 0,
    }
}

pub(crate) const RW: Access = Access::ReadWrite;
pub(crate) const RO: Access = Access::ReadOnly;
