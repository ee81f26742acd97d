//! What a user says beside a request's data.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Messages of up to this many bytes need no memory of their own. A block device's requests have 32.
pub const SHORT: usize = 47;

/// Bytes that a user of one end says to the other one's, with each request.
#[derive(Clone)]
pub struct Message(Bytes);

#[derive(Clone)]
enum Bytes {
    Short(u8, [u8; SHORT]),
    Long(Vec<u8>),
}

impl Message {
    /// This many zeroes, to be overwritten.
    #[must_use]
    pub fn zeroed(len: usize) -> Message {
        match u8::try_from(len) {
            Ok(short) if len <= SHORT => Message(Bytes::Short(short, [0; SHORT])),
            _ => Message(Bytes::Long(vec![0; len])),
        }
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short(len, bytes) => &bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Bytes::Short(len, bytes) => &mut bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Message {
    fn from(bytes: &[u8]) -> Message {
        let mut message = Message::zeroed(bytes.len());
        message.copy_from_slice(bytes);
        message
    }
}

impl<const N: usize> From<[u8; N]> for Message {
    fn from(bytes: [u8; N]) -> Message {
        Message::from(&bytes[..])
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Message {
        match bytes.len() <= SHORT {
            true => Message::from(&bytes[..]),
            false => Message(Bytes::Long(bytes)),
        }
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Message) -> bool {
        **self == **other
    }
}

impl Eq for Message {}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_any_length_is_what_was_said() {
        for len in [0, 1, 32, SHORT - 1, SHORT, SHORT + 1, 255, 256, 4096] {
            let said: Vec<u8> = (0..len).map(|n| n.to_le_bytes()[0]).collect();
            let message = Message::from(said.clone());
            assert_eq!(*message, said[..]);
            assert_eq!(message, Message::from(&said[..]));
            let mut other = Message::zeroed(len);
            assert_eq!(other.len(), len);
            other.copy_from_slice(&said);
            assert_eq!(other, message);
        }
        assert_ne!(Message::from([1, 2]), Message::from([1, 2, 0]));
    }
}
