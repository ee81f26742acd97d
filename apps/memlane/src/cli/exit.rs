//! The exit codes: one table, repeated word for word in `docs/exit-codes.md`.

use std::process::ExitCode;

use memlane_observe::control::{AskError, Reply};
use memlane_observe::trace::TraceError;

/// How the command ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    Unsupported = 3,
    PeerRefused = 4,
    FellBack = 5,
    Lost = 6,
    NobodyCame = 7,
    Launcher = 125,
    NotExecutable = 126,
    NotFound = 127,
}

impl Exit {
    /// Every code, in order.
    pub(crate) const ALL: [Exit; 11] = [
        Exit::Ok,
        Exit::Failed,
        Exit::Usage,
        Exit::Unsupported,
        Exit::PeerRefused,
        Exit::FellBack,
        Exit::Lost,
        Exit::NobodyCame,
        Exit::Launcher,
        Exit::NotExecutable,
        Exit::NotFound,
    ];

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The code that another process of memlane has named.
    pub(crate) fn from_code(code: u8) -> Exit {
        let known = Exit::ALL.iter().find(|exit| exit.code() == code);
        known.copied().unwrap_or(Exit::Failed)
    }

    /// As the documents and the manual pages tell it.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "ok",
            Exit::Failed => "failed",
            Exit::Usage => "usage: unknown flag or wrong value",
            Exit::Unsupported => "unsupported here: this machine or process lacks something",
            Exit::PeerRefused => "the peer refused, or is incompatible",
            Exit::FellBack => "the memory lane, or the path, that was required is not to be had",
            Exit::Lost => "`net sink` only: frames were missing, came twice or were changed",
            Exit::NobodyCame => "`net` with `--wait` only: nobody came in time",
            Exit::Launcher => "`run` only: the launcher failed before it started the command",
            Exit::NotExecutable => "`run` only: the command was found but could not be executed",
            Exit::NotFound => "`run` only: the command was not found",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// An error that wants another code than 1.
#[derive(Debug)]
pub(crate) struct Coded {
    pub(crate) exit: Exit,
    message: String,
}

impl std::fmt::Display for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// Makes an error that ends the command with `exit`.
pub(crate) fn fail(exit: Exit, message: impl Into<String>) -> anyhow::Error {
    Coded {
        exit,
        message: message.into(),
    }
    .into()
}

/// The exit code for an error.
pub(crate) fn code_of(error: &anyhow::Error) -> Exit {
    if let Some(coded) = error.downcast_ref::<Coded>() {
        return coded.exit;
    }
    match error.downcast_ref::<AskError>() {
        Some(AskError::Refused { exit_code, .. }) => return Exit::from_code(*exit_code),
        Some(AskError::Stranger(..)) => return Exit::PeerRefused,
        _ => {}
    }
    match error.downcast_ref::<TraceError>() {
        Some(TraceError::Busy { .. } | TraceError::Incompatible(_)) => Exit::PeerRefused,
        _ => Exit::Failed,
    }
}

/// The reply to a control question: the answer, or the error with its exit code.
pub(crate) fn reply(result: anyhow::Result<serde_json::Value>) -> Reply {
    match result {
        Ok(value) => Reply::Done(value),
        Err(error) => Reply::Failed {
            exit_code: code_of(&error).code(),
            message: format!("{error:#}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_table_is_the_table_in_the_code() {
        let page = include_str!("../../../../docs/exit-codes.md");
        let documented: Vec<String> = page
            .lines()
            .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
            .map(str::to_owned)
            .collect();
        let coded: Vec<String> = Exit::ALL
            .iter()
            .map(|exit| format!("| {} | {} |", exit.code(), exit.meaning()))
            .collect();
        assert_eq!(documented, coded);
    }

    #[test]
    fn a_plain_error_is_code_one_and_a_coded_one_keeps_its_code() {
        assert_eq!(code_of(&anyhow::anyhow!("x")), Exit::Failed);
        let error = fail(Exit::Unsupported, "x").context("while y");
        assert_eq!(code_of(&error), Exit::Unsupported);
    }

    #[test]
    fn the_exit_code_of_an_error_survives_the_way_to_whoever_asked() {
        let Reply::Failed { exit_code, message } = reply(Err(fail(Exit::FellBack, "no"))) else {
            panic!("an error is no answer");
        };
        let asked = anyhow::Error::from(AskError::Refused { exit_code, message });
        assert_eq!(code_of(&asked.context("session x")), Exit::FellBack);
    }
}
