//! Tokens: what names a piece of a region to a peer.

use memlane_sys::Result;

/// 64 random bits. Whoever has been told the token, over a channel on which the
/// kernel vouches for who listens, may use what it names. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Token(u64);

impl Token {
    /// A fresh token from the kernel's random source.
    pub fn fresh() -> Result<Token> {
        loop {
            let bits = memlane_sys::proc::random_u64()?;
            if bits != 0 {
                return Ok(Token(bits));
            }
        }
    }

    /// The token of these bits, as a peer told them.
    pub fn from_bits(bits: u64) -> Option<Token> {
        (bits != 0).then_some(Token(bits))
    }

    /// The bits, to be told to a peer.
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// What the holder of a token may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Map or write.
    Write,
    /// Read only.
    Read,
}

/// A token with the bounds and rights it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The token.
    pub token: Token,
    /// First byte in the region.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// Rights.
    pub rights: Rights,
}

impl Grant {
    /// Does `offset..offset+len`, counted from the grant's start, lie inside it?
    pub fn covers(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
}
