//! What the elements of a tensor are: names as NumPy and PyTorch have them, numbers as DLPack has them, letters as
//! Python's `struct` has them.

/// One kind of element, in this machine's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dtype {
    /// As NumPy writes it, and PyTorch behind `torch.`.
    pub(crate) name: &'static str,
    /// `DLDataTypeCode`: 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub(crate) code: u8,
    /// Bits of an element.
    pub(crate) bits: u8,
    /// For the buffer protocol; `None`: it has no letter for that.
    pub(crate) format: Option<&'static std::ffi::CStr>,
}

const fn of(
    name: &'static str,
    code: u8,
    bits: u8,
    format: Option<&'static std::ffi::CStr>,
) -> Dtype {
    Dtype {
        name,
        code,
        bits,
        format,
    }
}

/// All that there are.
const ALL: [Dtype; 15] = [
    of("bool", 6, 8, Some(c"?")),
    of("int8", 0, 8, Some(c"b")),
    of("int16", 0, 16, Some(c"h")),
    of("int32", 0, 32, Some(c"i")),
    of("int64", 0, 64, Some(c"q")),
    of("uint8", 1, 8, Some(c"B")),
    of("uint16", 1, 16, Some(c"H")),
    of("uint32", 1, 32, Some(c"I")),
    of("uint64", 1, 64, Some(c"Q")),
    of("float16", 2, 16, Some(c"e")),
    of("bfloat16", 4, 16, None),
    of("float32", 2, 32, Some(c"f")),
    of("float64", 2, 64, Some(c"d")),
    of("complex64", 5, 64, Some(c"Zf")),
    of("complex128", 5, 128, Some(c"Zd")),
];

impl Dtype {
    /// Bytes.
    pub(crate) const BYTE: Dtype = ALL[5];

    /// By its name; also `torch.float32`.
    pub(crate) fn named(name: &str) -> Option<Dtype> {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        ALL.into_iter().find(|dtype| dtype.name == name)
    }

    /// Names of all, for who wrote another one.
    pub(crate) fn names() -> String {
        ALL.map(|dtype| dtype.name).join(", ")
    }

    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        usize::from(self.bits) / 8
    }
}

/// Bytes of a tensor. `None`: a length is negative, or there are more bytes than memory has.
pub(crate) fn bytes_of(shape: &[i64], dtype: Dtype) -> Option<usize> {
    let mut bytes = dtype.size();
    for length in shape {
        bytes = bytes.checked_mul(usize::try_from(*length).ok()?)?;
    }
    // As large as an object may be, also for others who count with signs.
    isize::try_from(bytes).ok()?;
    Some(bytes)
}

/// Steps of a tensor that lies in one piece, row by row, in elements of `unit`.
pub(crate) fn strides_of(shape: &[i64], unit: i64) -> Vec<i64> {
    let mut strides = vec![unit; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(shape[at].max(1));
    }
    strides
}
