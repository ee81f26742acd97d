//! Identifiers of volumes, snapshots, stores and nodes.
//!
//! An identifier is `KEY@STORE`. The key follows from the name that the orchestrator chose, so a repeated call finds what
//! the first one made. A plain name is its own key, which a person can read on the disk; any other is hashed.
//!
//! A mirrored volume is `KEY@A@B`, with its stores in the order of their names. Its copy in store B is called `KEY@B@A` there.

use std::fmt;

use tonic::Status;

use crate::text::{is_plain, optional, required};

/// Longest name of a volume or snapshot, in bytes: the specification's limit for strings.
pub const NAME_LIMIT: usize = 128;
/// Longest name that is its own key, in bytes.
const PLAIN_LIMIT: usize = 60;
/// Longest identifier that is looked at, in bytes.
const ID_LIMIT: usize = 256;
/// Longest name of a store, in bytes.
const STORE_LIMIT: usize = 20;
/// Longest name of a session of `memlane map`, in bytes.
pub const SESSION_LIMIT: usize = 63;

/// What an identifier names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A volume.
    Volume,
    /// A snapshot of a volume.
    Snapshot,
}

impl Kind {
    /// What a key begins with: of a plain name, of a hashed one.
    fn prefixes(self) -> [&'static str; 2] {
        match self {
            Kind::Volume => ["v-", "x-"],
            Kind::Snapshot => ["s-", "t-"],
        }
    }

    fn field(self) -> &'static str {
        match self {
            Kind::Volume => "volume_id",
            Kind::Snapshot => "snapshot_id",
        }
    }
}

/// The identifier of a volume or a snapshot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId {
    store: String,
    key: String,
    /// The store of the other copy.
    beside: Option<String>,
}

impl VolumeId {
    /// The identifier of the volume with this name in a store.
    ///
    /// # Errors
    /// `InvalidArgument`: the name is empty, too long, or has control characters.
    pub fn of_volume(name: &str, store: &str) -> Result<VolumeId, Status> {
        VolumeId::of(Kind::Volume, name, store)
    }

    /// The identifier of the snapshot with this name in a store.
    ///
    /// # Errors
    /// As [`of_volume`](VolumeId::of_volume).
    pub fn of_snapshot(name: &str, store: &str) -> Result<VolumeId, Status> {
        VolumeId::of(Kind::Snapshot, name, store)
    }

    fn of(kind: Kind, name: &str, store: &str) -> Result<VolumeId, Status> {
        let name = required("name", name, NAME_LIMIT)?;
        let [plain, hashed] = kind.prefixes();
        let key = match name.len() <= PLAIN_LIMIT && is_plain(name, "-_") {
            true => format!("{plain}{name}"),
            false => format!("{hashed}{}", hash(name)),
        };
        Ok(VolumeId {
            store: store.to_owned(),
            key,
            beside: None,
        })
    }

    /// Reads an identifier. `None`: it is not one that this driver gives, so nothing has it.
    ///
    /// # Errors
    /// `InvalidArgument`: it is empty, too long, has control characters, or looks like a path.
    pub fn parse(kind: Kind, text: &str) -> Result<Option<VolumeId>, Status> {
        let field = kind.field();
        required(field, text, ID_LIMIT)?;
        if text.contains('/') || text.contains("..") {
            let why = format!("{field} {text:?} looks like a path");
            return Err(Status::invalid_argument(why));
        }
        Ok(VolumeId::read(kind, text))
    }

    fn read(kind: Kind, text: &str) -> Option<VolumeId> {
        let (key, place) = text.split_once('@')?;
        let [plain, hashed] = kind.prefixes();
        let is_key = match (key.strip_prefix(plain), key.strip_prefix(hashed)) {
            (Some(name), _) => {
                !name.is_empty() && name.len() <= PLAIN_LIMIT && is_plain(name, "-_")
            }
            (_, Some(hash)) => hash.len() == 32 && hash.bytes().all(is_hex),
            _ => false,
        };
        let (store, beside) = stores(place)?;
        let fits = is_key && (kind == Kind::Volume || beside.is_none());
        fits.then(|| VolumeId {
            store: store.to_owned(),
            key: key.to_owned(),
            beside: beside.map(str::to_owned),
        })
    }

    /// The volume with this key of which a node has mapped the copy of this session.
    #[must_use]
    pub fn of_session(session: &str, node: &str, key: &str) -> Option<VolumeId> {
        let place = session.strip_prefix(node)?.strip_prefix('@')?;
        VolumeId::read(Kind::Volume, &format!("{key}@{place}"))
    }

    /// The same volume, with another copy in this store.
    #[must_use]
    pub fn with(mut self, beside: Option<&str>) -> VolumeId {
        self.beside = beside.map(str::to_owned);
        self
    }

    /// Where a list goes on: behind the entry with this identifier. `None`: at its beginning.
    ///
    /// # Errors
    /// `Aborted`, as the specification wants: it is no token of ours.
    pub fn token(kind: Kind, text: &str) -> Result<Option<VolumeId>, Status> {
        if text.is_empty() {
            return Ok(None);
        }
        let known = optional("starting_token", text, ID_LIMIT)
            .ok()
            .and_then(|text| VolumeId::read(kind, text));
        known.map(Some).ok_or_else(|| {
            Status::aborted("starting_token was not given by this driver: list from the beginning")
        })
    }

    /// The part that names the volume within its store. It is a plain file name.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The store's name; of a mirrored volume, the store of the copy that is meant.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The store of the other copy, if the volume is mirrored.
    #[must_use]
    pub fn beside(&self) -> Option<&str> {
        self.beside.as_deref()
    }

    /// The volume's copies, in the order of their stores' names; of a volume that is not mirrored, itself.
    #[must_use]
    pub fn copies(&self) -> Vec<VolumeId> {
        let other = self.beside.as_ref().map(|beside| VolumeId {
            store: beside.clone(),
            key: self.key.clone(),
            beside: Some(self.store.clone()),
        });
        let mut all: Vec<VolumeId> = [Some(self.clone()), other].into_iter().flatten().collect();
        all.sort();
        all
    }

    /// The identifier that the orchestrator knows, which is that of the first copy.
    #[must_use]
    pub fn whole(&self) -> VolumeId {
        self.copies().swap_remove(0)
    }

    /// 128 bits that stand for the volume, whichever of its copies this is.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        digest(&self.whole().to_string())
    }

    /// The session by which a node uses this copy: also the folder that the store's server gives to that node.
    #[must_use]
    pub fn session(&self, node: &str) -> String {
        format!("{node}@{}", self.place())
    }

    /// The part behind the key.
    fn place(&self) -> String {
        match &self.beside {
            Some(beside) => format!("{}@{beside}", self.store),
            None => self.store.clone(),
        }
    }
}

/// Reads the part of an identifier behind the key.
fn stores(place: &str) -> Option<(&str, Option<&str>)> {
    let (store, beside) = match place.split_once('@') {
        Some((store, beside)) => (store, Some(beside)),
        None => (place, None),
    };
    let fits = |name: &str| store_name(name).is_ok();
    let other = beside.is_none_or(|beside| fits(beside) && beside != store);
    (fits(store) && other).then_some((store, beside))
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key, self.place())
    }
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// 128 bits of the name's SHA-256, in hexadecimal.
fn hash(name: &str) -> String {
    let half = digest(name);
    half.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 128 bits of a text's SHA-256.
fn digest(text: &str) -> [u8; 16] {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let half = digest.as_ref().first_chunk();
    // SHA-256 has more.
    half.copied().unwrap_or_default()
}

/// Checks the name of a store, for a flag.
///
/// # Errors
/// Says what a name must be.
pub fn store_name(text: &str) -> Result<String, String> {
    let fits = !text.is_empty() && text.len() <= STORE_LIMIT && is_plain(text, "-");
    fits.then(|| text.to_owned())
        .ok_or_else(|| format!("a store's name has up to {STORE_LIMIT} letters, digits and '-'"))
}

/// The identifier of the node with this host name. Sessions of memlane are named after it, and their names have no dots.
///
/// # Errors
/// Says what a name must be.
pub fn node_id(host: &str) -> Result<String, String> {
    let limit = SESSION_LIMIT - 1 - STORE_LIMIT;
    let node = host.replace('.', ":");
    let fits = !node.is_empty() && node.len() <= limit && is_plain(&node, "-_:");
    fits.then_some(node).ok_or_else(|| {
        format!("a node's name has up to {limit} letters, digits, '-', '_' and '.': {host:?} does not fit; give it another with --node-id")
    })
}

/// Whether a name is short enough to be that of a session.
#[must_use]
pub fn fits_session(session: &str) -> bool {
    session.len() <= SESSION_LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tonic::Code;

    proptest! {
        #[test]
        fn an_identifier_is_read_back_and_is_a_plain_file_name(name in "\\PC{1,32}") {
            let id = VolumeId::of_volume(&name, "a-1").expect("a name");
            let text = id.to_string();
            prop_assert!(text.len() <= 128);
            prop_assert!(is_plain(id.key(), "-_"));
            prop_assert_eq!(VolumeId::parse(Kind::Volume, &text).expect("one"), Some(id));
        }

        #[test]
        fn two_names_never_share_an_identifier(a in "[a-z./ -]{1,90}", b in "[a-z./ -]{1,90}") {
            let of = |name| VolumeId::of_volume(name, "s").expect("a name");
            prop_assert_eq!(a == b, of(&a) == of(&b));
        }

        #[test]
        fn any_text_is_an_identifier_or_none_and_never_leads_elsewhere(text in "\\PC{0,300}") {
            if let Ok(Some(id)) = VolumeId::parse(Kind::Volume, &text) {
                prop_assert!(!id.key().contains(['/', '.']));
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn a_path_for_an_identifier_is_refused_and_a_strange_one_names_nothing() {
        for wrong in ["", "../x", "v-a/../b@s", "v-a\0@s", &"v".repeat(300)] {
            let error = VolumeId::parse(Kind::Volume, wrong).expect_err(wrong);
            assert_eq!(error.code(), Code::InvalidArgument, "{wrong:?}");
        }
        for strange in ["x", "v-@s", "s-a@s", "v-a", "v-a@", "v-a@s@s", "x-12@s"] {
            let read = VolumeId::parse(Kind::Volume, strange).expect("harmless");
            assert_eq!(read, None, "{strange}");
        }
    }

    #[test]
    fn a_mirrored_volume_has_one_identifier_and_a_name_for_each_copy() {
        let id = VolumeId::of_volume("a", "s2")
            .expect("a name")
            .with(Some("s1"));
        assert_eq!(id.whole().to_string(), "v-a@s1@s2");
        let copies: Vec<String> = id.copies().iter().map(VolumeId::to_string).collect();
        assert_eq!(copies, ["v-a@s1@s2", "v-a@s2@s1"]);
        assert_eq!(id.session("n"), "n@s2@s1");
        assert_eq!(VolumeId::of_session("n@s2@s1", "n", "v-a"), Some(id));
        assert_eq!(VolumeId::of_session("n2@s2@s1", "n", "v-a"), None);
        for strange in ["v-a@s@s", "v-a@s@", "v-a@s@t@u", "s-a@s@t"] {
            let read = |kind| VolumeId::parse(kind, strange).expect("harmless");
            assert_eq!((read(Kind::Volume), read(Kind::Snapshot)), (None, None));
        }
    }

    #[test]
    fn a_token_of_somebody_else_is_aborted() {
        for wrong in ["invalid-token", "\u{1}", "v-a"] {
            let error = VolumeId::token(Kind::Volume, wrong).expect_err(wrong);
            assert_eq!(error.code(), Code::Aborted);
        }
        assert!(matches!(VolumeId::token(Kind::Volume, ""), Ok(None)));
    }

    #[test]
    fn a_node_and_a_store_always_fit_into_the_name_of_a_session() {
        let node = node_id(&"n".repeat(42)).expect("fits");
        let store = store_name(&"s".repeat(20)).expect("fits");
        let id = VolumeId::of_volume("v", &store).expect("a name");
        assert!(fits_session(&id.session(&node)));
        // Of a mirrored volume, it is the two stores that have to share the room.
        assert!(!fits_session(&id.clone().with(Some("t")).session(&node)));
        assert!(fits_session(&id.with(Some("t")).session(&node[2..])));
        assert_eq!(node_id("a.b.example").as_deref(), Ok("a:b:example"));
        for wrong in ["", "a/b", "a b", &"n".repeat(43)] {
            assert!(node_id(wrong).is_err(), "{wrong}");
        }
    }
}
