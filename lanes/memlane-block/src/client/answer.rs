//! What a server's answers come to. Pure: any bytes give a meaning or an error.

use super::error::{Change, OpenError};
use crate::loan::LoanToken;
use crate::volume::{Flags, Info, Op};
use crate::wire::{Busy, OpenRsp, SECTOR, SessInfoRsp, VERSION, WireError};
use crate::wire::{CAP_BOOT_ID, CAP_EXTENTS, CAP_FAST_ZERO, CAP_LOAN, CAP_TAKE_OVER, CAPS};

/// Longest trim or write-zeroes that a volume's user may ask for in one piece.
const LONGEST_TRIM: u32 = 1 << 30;
/// Most requests that one trim is split into: a server does not decide how much work one request is.
const MOST_PARTS: u32 = 256;

/// A server, as it answered SESS_INFO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Server {
    /// What both can do.
    pub caps: u16,
    /// Which start of its machine this is; `None`: it does not say.
    pub boot: Option<[u8; 16]>,
}

impl Server {
    /// What the answer to SESS_INFO means.
    ///
    /// # Errors
    /// It means nothing, or the server speaks another version.
    pub fn parse(bytes: &[u8]) -> Result<Server, OpenError> {
        let rsp = SessInfoRsp::decode(bytes)?;
        if rsp.version != VERSION {
            return Err(OpenError::OtherVersion(rsp.version));
        }
        let told = rsp.caps & CAP_BOOT_ID != 0 && rsp.boot != [0; 16];
        Ok(Server {
            caps: rsp.caps & CAPS,
            boot: told.then_some(rsp.boot),
        })
    }

    /// The same server, without what a client that does not borrow never asked for.
    #[must_use]
    pub fn for_client(self, borrows: bool) -> Server {
        let without = if borrows { 0 } else { CAP_LOAN };
        Server {
            caps: self.caps & !without,
            ..self
        }
    }

    /// Has the server's machine kept its memory since it was this one? One that does not say may have lost it.
    #[must_use]
    pub fn kept_memory_since(&self, before: &Server) -> bool {
        self.boot.is_some() && self.boot == before.boot
    }
}

/// Most bytes of one request, by what it does; 0: it cannot be done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Steps {
    /// Trim.
    pub trim: u32,
    /// Write-zeroes.
    pub zeroes: u32,
    /// [`Flags::FAST`] is understood.
    pub fast: bool,
}

impl Steps {
    /// For this operation.
    #[must_use]
    pub fn of(&self, op: Op) -> u32 {
        match op {
            Op::Trim => self.trim,
            Op::WriteZeroes => self.zeroes,
            _ => u32::MAX,
        }
    }

    /// May it be asked for like this at all?
    #[must_use]
    pub fn allow(&self, op: Op, flags: Flags) -> bool {
        self.of(op) > 0 && (self.fast || !(op == Op::WriteZeroes && flags.has(Flags::FAST)))
    }
}

/// An opened volume, as the server answered OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its number in requests.
    pub device_id: u32,
    /// What it is.
    pub info: Info,
    /// How long requests may be.
    pub steps: Steps,
    /// The volume's memory, if the server offers it.
    pub loan: Option<LoanToken>,
}

impl Opened {
    /// What the answer to OPEN means, of a server with `caps` whose chunks take `max_io` bytes of data.
    ///
    /// # Errors
    /// The answer means nothing, or that another client has the volume.
    pub fn parse(bytes: &[u8], caps: u16, max_io: u32) -> Result<Opened, OpenError> {
        if caps & CAP_TAKE_OVER != 0 && Busy::is_meant(bytes) {
            return Err(OpenError::Held(Busy::decode(bytes)?));
        }
        let rsp = OpenRsp::decode(bytes)?;
        let mut info = rsp.info();
        let whole = |bytes: u32| bytes & !(info.block - 1);
        let step = |able: bool, sectors: u32| {
            let bytes = whole(sectors.saturating_mul(SECTOR).min(LONGEST_TRIM));
            if able { bytes } else { 0 }
        };
        let steps = Steps {
            trim: step(info.trim, rsp.max_discard_sectors),
            zeroes: step(info.zeroes, rsp.max_write_zeroes_sectors),
            fast: caps & CAP_FAST_ZERO != 0,
        };
        let shortest = [steps.trim, steps.zeroes];
        let shortest = shortest.into_iter().filter(|step| *step > 0).min();
        let longest = shortest.map_or(0, |step| step.saturating_mul(MOST_PARTS));
        let max_io = whole(info.max_io.min(max_io));
        if max_io == 0 {
            return Err(OpenError::Nonsense(WireError::Field("max_hw_sectors")));
        }
        info.max_trim = whole(longest.min(LONGEST_TRIM));
        info.max_io = max_io;
        info.trim = steps.trim > 0;
        info.zeroes = steps.zeroes > 0;
        info.extents &= caps & CAP_EXTENTS != 0;
        Ok(Opened {
            device_id: rsp.device_id,
            info,
            steps,
            loan: rsp.loan.filter(|_| caps & CAP_LOAN != 0),
        })
    }

    /// Can this be the volume that was `before`, for a user who knows that one? `resized` reports what may shrink.
    ///
    /// # Errors
    /// What has changed that must not.
    pub fn still(&self, before: &Info, resized: bool) -> Result<(), Change> {
        let now = &self.info;
        if now.block != before.block {
            let (was, is) = (before.block, now.block);
            return Err(Change::Block { was, is });
        }
        if now.size < before.size && !resized {
            let (was, is) = (before.size, now.size);
            return Err(Change::Smaller { was, is });
        }
        if now.max_io < before.max_io {
            let (was, is) = (before.max_io, now.max_io);
            return Err(Change::MaxIo { was, is });
        }
        if now.read_only && !before.read_only {
            return Err(Change::ReadOnly);
        }
        if now.cached && !before.cached {
            return Err(Change::Cached);
        }
        Ok(())
    }
}
