//! The kernel's own description of its types (BTF), as far as the agent needs it: where a field lies in a structure, and
//! which number a function has.
//!
//! Source of every constant: `include/uapi/linux/btf.h`.

use core::fmt;

/// First two bytes of a BTF file, in the machine's byte order (`BTF_MAGIC`).
const MAGIC: u16 = 0xeb9f;
/// Bytes of `struct btf_header` that every version has.
const HEADER: usize = 24;
/// Bytes of `struct btf_type`.
const TYPE: usize = 12;
/// Structures without a name inside each other, at most: real kernels have four.
const DEPTH: u32 = 16;

const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// Why the description is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BtfError {
    /// It is not BTF, or its tables lie outside of the file.
    Malformed,
    /// There is no such type, function or field.
    Missing(&'static str),
    /// The field does not begin at a whole byte.
    Bitfield(&'static str),
}

impl fmt::Display for BtfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BtfError::Malformed => write!(f, "the kernel's type information is malformed"),
            BtfError::Missing(what) => write!(f, "the kernel's type information has no {what}"),
            BtfError::Bitfield(what) => write!(f, "{what} is a bit field"),
        }
    }
}

impl std::error::Error for BtfError {}

/// A BTF file, indexed by type number.
pub struct Btf {
    bytes: Vec<u8>,
    /// Where each type lies in `bytes`; type 0 is `void` and has no entry of its own.
    types: Vec<u32>,
    strings: usize,
    strings_end: usize,
}

/// A type's fixed part.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    flag: bool,
    members: u32,
    /// Bytes of a structure; the type that a typedef or qualifier stands for.
    size_or_type: u32,
    /// What follows the fixed part lies here.
    at: usize,
}

impl Btf {
    /// Reads a BTF file.
    ///
    /// # Errors
    /// `Malformed`, if its header or a type does not lie within it.
    pub fn parse(bytes: Vec<u8>) -> Result<Btf, BtfError> {
        let (types, strings, strings_end) = tables(&bytes).ok_or(BtfError::Malformed)?;
        let mut btf = Btf {
            bytes,
            types: vec![0],
            strings,
            strings_end,
        };
        let mut at = types.0;
        while at < types.1 {
            btf.types
                .push(u32::try_from(at).map_err(|_| BtfError::Malformed)?);
            let this = btf.type_at(at).ok_or(BtfError::Malformed)?;
            at = this.at + trailer(&this).ok_or(BtfError::Malformed)?;
        }
        if at == types.1 {
            Ok(btf)
        } else {
            Err(BtfError::Malformed)
        }
    }

    /// The number of a function.
    ///
    /// # Errors
    /// `Missing`, if the kernel has no function of that name.
    pub fn function(&self, name: &'static str) -> Result<u32, BtfError> {
        self.find(KIND_FUNC, name)
    }

    /// Where a field lies in a structure, in bytes. `path` names a field of a field by a dot: `__sk_common.skc_state`.
    ///
    /// # Errors
    /// `Missing`, if there is no such structure or field; `Bitfield`, if it does not begin at a whole byte.
    pub fn offset(&self, structure: &'static str, path: &'static str) -> Result<i16, BtfError> {
        let mut of = self.find(KIND_STRUCT, structure)?;
        let mut bits = 0u64;
        for field in path.split('.') {
            let (at, of_field) = self
                .field(of, field, DEPTH)
                .ok_or(BtfError::Missing(path))?;
            bits += at;
            of = of_field;
        }
        if !bits.is_multiple_of(8) {
            return Err(BtfError::Bitfield(path));
        }
        i16::try_from(bits / 8).map_err(|_| BtfError::Malformed)
    }

    fn find(&self, kind: u32, name: &'static str) -> Result<u32, BtfError> {
        (1..self.types.len())
            .find(|&i| {
                self.type_of(i)
                    .is_some_and(|t| t.kind == kind && self.is_named(t.name, name))
            })
            .and_then(|i| u32::try_from(i).ok())
            .ok_or(BtfError::Missing(name))
    }

    /// A field of a structure or union, also one of a member that has no name: its place in bits, and its type.
    fn field(&self, of: u32, name: &str, depth: u32) -> Option<(u64, u32)> {
        let this = self.type_of(self.plain(of)?)?;
        if depth == 0 || !matches!(this.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        for i in 0..this.members as usize {
            let at = this.at + i * TYPE;
            let (member, of_member) = (self.word(at)?, self.word(at + 4)?);
            let place = self.word(at + 8)?;
            // With the flag, the upper byte is the size of a bit field.
            let place = u64::from(if this.flag { place & 0xff_ffff } else { place });
            if self.is_named(member, name) {
                return Some((place, of_member));
            }
            if self.is_named(member, "")
                && let Some((inner, of_field)) = self.field(of_member, name, depth - 1)
            {
                return Some((place + inner, of_field));
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers.
    fn plain(&self, mut of: u32) -> Option<usize> {
        for _ in 0..DEPTH {
            let this = self.type_of(of as usize)?;
            match this.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_TYPE_TAG => of = this.size_or_type,
                _ => return Some(of as usize),
            }
        }
        None
    }

    fn type_of(&self, number: usize) -> Option<Type> {
        let at = *self.types.get(number).filter(|_| number != 0)?;
        self.type_at(at as usize)
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = self.word(at + 4)?;
        Some(Type {
            name: self.word(at)?,
            kind: info >> 24 & 0x1f,
            flag: info >> 31 == 1,
            members: info & 0xffff,
            size_or_type: self.word(at + 8)?,
            at: at + TYPE,
        })
    }

    fn word(&self, at: usize) -> Option<u32> {
        word(&self.bytes, at)
    }

    fn is_named(&self, name_at: u32, name: &str) -> bool {
        let strings = self.bytes.get(self.strings..self.strings_end);
        let from_here = strings.and_then(|all| all.get(name_at as usize..));
        from_here
            .and_then(|rest| rest.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Begin and end of the types, begin and end of the strings.
fn tables(bytes: &[u8]) -> Option<((usize, usize), usize, usize)> {
    let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    let header = word(bytes, 4)? as usize;
    if magic != MAGIC || header < HEADER {
        return None;
    }
    let table = |at: usize| {
        let from = header.checked_add(word(bytes, at)? as usize)?;
        let to = from.checked_add(word(bytes, at + 4)? as usize)?;
        (to <= bytes.len()).then_some((from, to))
    };
    let (types, strings) = (table(8)?, table(16)?);
    Some((types, strings.0, strings.1))
}

/// Bytes that follow a type's fixed part.
fn trailer(this: &Type) -> Option<usize> {
    let each = match this.kind {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => return Some(4),
        KIND_ARRAY => return Some(12),
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12,
        KIND_ENUM | KIND_FUNC_PROTO => 8,
        1..=KIND_ENUM64 => 0,
        _ => return None,
    };
    Some(each * this.members as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small file: `struct outer { int a; struct { int b; struct inner in; }; }`, `struct inner { int x, y; }`, function `go`.
    fn sample() -> Vec<u8> {
        let strings = b"\0outer\0inner\0a\0b\0in\0x\0y\0go\0int\0";
        let name = |n: &str| {
            let wanted = [&b"\0"[..], n.as_bytes(), b"\0"].concat();
            let at = strings.windows(wanted.len()).position(|w| w == wanted);
            u32::try_from(at.expect("a name of the table") + 1).unwrap()
        };
        let info = |kind: u32, members: u32| kind << 24 | members;
        let words: Vec<u32> = [
            vec![name("int"), info(KIND_INT, 0), 4, 0x0100_0020], // 1
            vec![name("inner"), info(KIND_STRUCT, 2), 8],         // 2
            vec![name("x"), 1, 0, name("y"), 1, 32],
            vec![0, info(KIND_STRUCT, 2), 12], // 3
            vec![name("b"), 1, 0, name("in"), 2, 32],
            vec![name("outer"), info(KIND_STRUCT, 2), 16], // 4
            vec![name("a"), 1, 0, 0, 3, 32],
            vec![0, info(KIND_FUNC_PROTO, 0), 0],    // 5
            vec![name("go"), info(KIND_FUNC, 0), 5], // 6
        ]
        .concat();
        let types: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut file = MAGIC.to_ne_bytes().to_vec();
        file.extend([1, 0]);
        let len = |n: usize| u32::try_from(n).unwrap();
        for word in [
            len(HEADER),
            0,
            len(types.len()),
            len(types.len()),
            len(strings.len()),
        ] {
            file.extend(word.to_ne_bytes());
        }
        [file, types, strings.to_vec()].concat()
    }

    #[test]
    fn a_field_is_found_through_members_that_have_no_name() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.offset("outer", "a"), Ok(0));
        assert_eq!(btf.offset("outer", "b"), Ok(4));
        assert_eq!(btf.offset("outer", "in.y"), Ok(12));
        assert_eq!(btf.function("go"), Ok(6));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.offset("nobody", "a"), Err(BtfError::Missing("nobody")));
        assert_eq!(btf.offset("outer", "z"), Err(BtfError::Missing("z")));
        assert_eq!(btf.function("inner"), Err(BtfError::Missing("inner")));
    }

    #[test]
    fn every_truncation_is_refused_and_none_is_read_past_its_end() {
        let whole = sample();
        for len in 0..whole.len() {
            assert!(Btf::parse(whole[..len].to_vec()).is_err(), "{len}");
        }
    }

    #[test]
    fn this_kernel_tells_where_its_sockets_keep_their_numbers() {
        let Ok(file) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("skipped: this kernel has no BTF");
            return;
        };
        let btf = Btf::parse(file).unwrap();
        assert!(btf.offset("tcp_sock", "snd_una").unwrap() > 0);
        assert!(btf.offset("sock", "__sk_common.skc_net.net").unwrap() > 0);
        assert!(btf.function("bpf_iter_task_file").unwrap() > 0);
    }
}
