//! The exit codes of this program.

use std::process::ExitCode;

/// How the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Everything was measured.
    Ok = 0,
    /// It failed.
    Failed = 1,
    /// An unknown flag, name or value.
    Usage = 2,
    /// This machine lacks something that was asked for.
    Unsupported = 3,
    /// The gate could not be held: a build or a measurement failed, or somebody wanted it to stop.
    NoVerdict = 4,
    /// Everything was measured, but bytes that belong in memory went by TCP.
    FellBack = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error that ends the program with another code than 1.
#[derive(Debug)]
struct Coded {
    exit: Exit,
    message: String,
}

impl std::fmt::Display for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// Makes an error that ends the program with `exit`.
pub(crate) fn fail(exit: Exit, message: impl Into<String>) -> anyhow::Error {
    Coded {
        exit,
        message: message.into(),
    }
    .into()
}

/// The same error; if it asks for no code, it asks for `exit` from now on.
pub(crate) fn or(error: anyhow::Error, exit: Exit) -> anyhow::Error {
    match error.is::<Coded>() {
        true => error,
        false => fail(exit, format!("{error:#}")),
    }
}

/// The code that an error asks for.
pub(crate) fn code_of(error: &anyhow::Error) -> Exit {
    error
        .downcast_ref::<Coded>()
        .map_or(Exit::Failed, |coded| coded.exit)
}
