//! The handshake, without descriptors: bytes of a client go in, bytes for it come out, and at the end it is known
//! which export it uses and how.
//!
//! Bounded on all sides: a client's option is at most [`MAX_OPTION`] bytes, and there are at most [`MAX_OPTIONS`] of
//! them; the caller sets a time limit.

use super::wire::{self, info, opt, rep};

/// Longest data of an option: a name, and queries or information requests.
pub const MAX_OPTION: usize = 3 * wire::MAX_STRING;
/// Most options of one client.
pub const MAX_OPTIONS: u32 = 256;
/// More than this is not put together without being sent in between.
const MAX_OUT: usize = 64 * 1024;
/// Most information requests or queries of one option.
const MAX_ITEMS: usize = 64;

/// An export, as a client sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// Words for a person.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Transmission flags but `SEND_DF`, which comes with structured replies.
    pub flags: u16,
    /// Smallest and best size of a request.
    pub blocks: (u32, u32),
}

/// What the driver does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Feed more.
    More,
    /// Send what there is to send, then begin TLS on the same stream, then say [`Negotiation::secured`].
    StartTls,
    /// Send what there is to send; requests come next, the first perhaps in the bytes that were not eaten.
    Begin(Agreed),
    /// Send what there is to send, then close.
    Close,
}

/// What was agreed upon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Index of the export.
    pub export: usize,
    /// Replies come in chunks.
    pub structured: bool,
    /// `base:allocation` may be asked for.
    pub allocation: bool,
}

/// Is TLS offered, and must it be?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tls {
    /// No.
    Absent,
    /// A client may.
    Offered,
    /// A client that does not gets no information.
    Required,
}

/// One client's handshake.
#[derive(Debug)]
pub struct Negotiation<'a> {
    offers: &'a [Offer],
    tls: Tls,
    secure: bool,
    stopping: bool,
    greeted: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was chosen.
    allocation: Option<usize>,
    options: u32,
    out: Vec<u8>,
}

impl<'a> Negotiation<'a> {
    /// Begins; there is something to send at once.
    #[must_use]
    pub fn new(offers: &'a [Offer], tls: Tls) -> Negotiation<'a> {
        let mut out = Vec::with_capacity(256);
        out.extend(wire::NBDMAGIC.to_be_bytes());
        out.extend(wire::IHAVEOPT.to_be_bytes());
        out.extend((wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes());
        Negotiation {
            offers,
            tls,
            secure: false,
            stopping: false,
            greeted: false,
            no_zeroes: false,
            structured: false,
            allocation: None,
            options: 0,
            out,
        }
    }

    /// From now on options are answered with "stopping".
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// TLS is up: what was agreed upon in the clear is forgotten, because anybody can have said it.
    pub fn secured(&mut self) {
        self.secure = true;
        (self.structured, self.allocation) = (false, None);
    }

    /// What is to be sent; taken away.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Looks at the bytes that have come and says how many are done with. Others are wanted again, with more
    /// behind them; nothing is looked at while there is much to send.
    pub fn feed(&mut self, bytes: &[u8]) -> (usize, Step) {
        let mut eaten = 0;
        loop {
            let (n, step) = self.step(&bytes[eaten..]);
            eaten += n;
            if n == 0 || step != Step::More || self.out.len() > MAX_OUT {
                return (eaten, step);
            }
        }
    }

    /// One message; 0 bytes if it is not all there.
    fn step(&mut self, bytes: &[u8]) -> (usize, Step) {
        if !self.greeted {
            return self.greeting(bytes);
        }
        let header = (wire::u64_at(bytes, 0), wire::u32_at(bytes, 8));
        let (Some(magic), Some(option)) = header else {
            return (0, Step::More);
        };
        let Some(len) = wire::u32_at(bytes, 12).map(|len| len as usize) else {
            return (0, Step::More);
        };
        self.options += u32::from(bytes.len() >= 16 + len.min(MAX_OPTION));
        if magic != wire::IHAVEOPT || self.options > MAX_OPTIONS {
            return (bytes.len(), Step::Close);
        }
        if len > MAX_OPTION {
            // Reading on would cost more than it is worth.
            self.reply(option, rep::ERR_TOO_BIG, &[b"option too long"]);
            return (bytes.len(), Step::Close);
        }
        match bytes.get(16..16 + len) {
            Some(data) => (16 + len, self.option(option, data)),
            None => (0, Step::More),
        }
    }

    fn greeting(&mut self, bytes: &[u8]) -> (usize, Step) {
        let Some(flags) = wire::u32_at(bytes, 0) else {
            return (0, Step::More);
        };
        let known = u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
        if flags & !known != 0 {
            return (4, Step::Close);
        }
        self.greeted = true;
        self.no_zeroes = flags & u32::from(wire::NO_ZEROES) != 0;
        (4, Step::More)
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Step {
        let closed = self.tls == Tls::Required && !self.secure;
        match option {
            opt::ABORT => {
                self.reply(option, rep::ACK, &[]);
                Step::Close
            }
            opt::EXPORT_NAME if self.stopping || closed => Step::Close,
            _ if self.stopping => self.refuse(option, rep::ERR_SHUTDOWN, "the server is stopping"),
            opt::STARTTLS => self.start_tls(data),
            _ if closed => self.refuse(option, rep::ERR_TLS_REQD, "TLS is required"),
            opt::EXPORT_NAME => self.export_name(data),
            opt::LIST => self.list(data),
            opt::INFO | opt::GO => self.info(option, data),
            opt::STRUCTURED_REPLY => self.structured_reply(data),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, data),
            _ => self.refuse(option, rep::ERR_UNSUP, "unknown option"),
        }
    }

    fn start_tls(&mut self, data: &[u8]) -> Step {
        let option = opt::STARTTLS;
        if self.tls == Tls::Absent {
            return self.refuse(option, rep::ERR_UNSUP, "no TLS here");
        }
        if self.secure || !data.is_empty() {
            return self.refuse(option, rep::ERR_INVALID, "once, and without data");
        }
        self.reply(option, rep::ACK, &[]);
        Step::StartTls
    }

    /// The old way: what cannot be had ends the connection.
    fn export_name(&mut self, name: &[u8]) -> Step {
        let Some(export) = self.find(name) else {
            return Step::Close;
        };
        let offer = &self.offers[export];
        self.out.extend(offer.size.to_be_bytes());
        self.out.extend(self.flags(offer).to_be_bytes());
        if !self.no_zeroes {
            self.out.extend([0; 124]);
        }
        self.begin(export)
    }

    fn list(&mut self, data: &[u8]) -> Step {
        if !data.is_empty() {
            return self.refuse(opt::LIST, rep::ERR_INVALID, "LIST has no data");
        }
        for offer in self.offers {
            let name = offer.name.as_bytes();
            let len = length(name).to_be_bytes();
            let about = offer.description.as_bytes();
            self.reply(opt::LIST, rep::SERVER, &[&len, name, about]);
        }
        self.reply(opt::LIST, rep::ACK, &[]);
        Step::More
    }

    fn info(&mut self, option: u32, data: &[u8]) -> Step {
        let Some((name, wanted)) = info_request(data) else {
            return self.refuse(option, rep::ERR_INVALID, "not an information request");
        };
        let Some(export) = self.find(name) else {
            return self.refuse(option, rep::ERR_UNKNOWN, "no such export");
        };
        let offer = &self.offers[export];
        let (size, flags) = (offer.size.to_be_bytes(), self.flags(offer).to_be_bytes());
        self.detail(option, info::EXPORT, &[&size, &flags]);
        if wanted.contains(&info::NAME) {
            self.detail(option, info::NAME, &[offer.name.as_bytes()]);
        }
        if wanted.contains(&info::DESCRIPTION) {
            self.detail(option, info::DESCRIPTION, &[offer.description.as_bytes()]);
        }
        if wanted.contains(&info::BLOCK_SIZE) {
            let (min, best) = (offer.blocks.0.to_be_bytes(), offer.blocks.1.to_be_bytes());
            let most = wire::MAX_PAYLOAD.to_be_bytes();
            self.detail(option, info::BLOCK_SIZE, &[&min, &best, &most]);
        }
        self.reply(option, rep::ACK, &[]);
        match option {
            opt::GO => self.begin(export),
            _ => Step::More,
        }
    }

    fn structured_reply(&mut self, data: &[u8]) -> Step {
        let option = opt::STRUCTURED_REPLY;
        if !data.is_empty() {
            return self.refuse(option, rep::ERR_INVALID, "STRUCTURED_REPLY has no data");
        }
        self.structured = true;
        self.reply(option, rep::ACK, &[]);
        Step::More
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) -> Step {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            self.allocation = None;
        }
        if !self.structured {
            return self.refuse(option, rep::ERR_INVALID, "structured replies first");
        }
        let Some((name, queries)) = context_request(data) else {
            return self.refuse(option, rep::ERR_INVALID, "not a list of queries");
        };
        let Some(export) = self.find(name) else {
            return self.refuse(option, rep::ERR_UNKNOWN, "no such export");
        };
        let asked = match set {
            true => queries.contains(&wire::BASE_ALLOCATION),
            false => {
                let matches = |query: &&[u8]| *query == wire::BASE_ALLOCATION || *query == b"base:";
                queries.is_empty() || queries.iter().any(matches)
            }
        };
        if asked {
            let id = if set { wire::BASE_ALLOCATION_ID } else { 0 };
            let parts: [&[u8]; 2] = [&id.to_be_bytes(), wire::BASE_ALLOCATION];
            self.reply(option, rep::META_CONTEXT, &parts);
            self.allocation = if set { Some(export) } else { self.allocation };
        }
        self.reply(option, rep::ACK, &[]);
        Step::More
    }

    fn begin(&self, export: usize) -> Step {
        Step::Begin(Agreed {
            export,
            structured: self.structured,
            allocation: self.allocation == Some(export),
        })
    }

    fn flags(&self, offer: &Offer) -> u16 {
        match self.structured {
            true => offer.flags | wire::flag::SEND_DF,
            false => offer.flags,
        }
    }

    /// The empty name is the default export: the first.
    fn find(&self, name: &[u8]) -> Option<usize> {
        let named = |offer: &Offer| offer.name.as_bytes() == name;
        let found = self.offers.iter().position(named);
        found.or_else(|| (name.is_empty() && !self.offers.is_empty()).then_some(0))
    }

    fn detail(&mut self, option: u32, kind: u16, parts: &[&[u8]]) {
        let kind = kind.to_be_bytes();
        let parts: Vec<&[u8]> = [&kind as &[u8]]
            .into_iter()
            .chain(parts.iter().copied())
            .collect();
        self.reply(option, rep::INFO, &parts);
    }

    fn refuse(&mut self, option: u32, kind: u32, why: &str) -> Step {
        self.reply(option, kind, &[why.as_bytes()]);
        Step::More
    }

    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let data = parts.concat();
        self.out.extend(wire::OPTION_REPLY_MAGIC.to_be_bytes());
        self.out.extend(option.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend(length(&data).to_be_bytes());
        self.out.extend(data);
    }
}

/// Our own strings are short: [`super::ServerConfig`] is checked for it.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// A string behind its length, and what follows.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = wire::u32_at(data, 0)? as usize;
    let rest = data.get(4..)?;
    (len <= wire::MAX_STRING && len <= rest.len()).then(|| rest.split_at(len))
}

/// Data of `INFO` and `GO`: name, count, information requests.
fn info_request(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (name, rest) = string(data)?;
    let count = usize::from(wire::u16_at(rest, 0)?);
    let items = rest.get(2..)?;
    let whole = items.len() == count * 2 && count <= MAX_ITEMS;
    let numbers = items
        .chunks_exact(2)
        .filter_map(|item| wire::u16_at(item, 0));
    whole.then(|| (name, numbers.collect()))
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`: name, count, queries.
fn context_request(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = string(data)?;
    let count = wire::u32_at(rest, 0)? as usize;
    let mut rest = rest.get(4..)?;
    if count > MAX_ITEMS {
        return None;
    }
    let mut queries = Vec::with_capacity(count);
    for _ in 0..count {
        let (query, behind) = string(rest)?;
        queries.push(query);
        rest = behind;
    }
    rest.is_empty().then_some((name, queries))
}

#[cfg(test)]
#[path = "negotiate_tests.rs"]
mod tests;
