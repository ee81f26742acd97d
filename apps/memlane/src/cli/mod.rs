//! What all verbs share with the terminal: exit codes, output, colours, values of flags.

pub(crate) mod color;
pub(crate) mod device;
pub(crate) mod exit;
pub(crate) mod out;
pub(crate) mod values;
