//! Commands of the system, and of memlane.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Longest part of a command's error output that becomes a message, in bytes.
const LONGEST: usize = 1000;

/// Runs a command, and returns what it printed; if it failed, a line that says so.
pub(crate) fn run<W: AsRef<OsStr>>(program: &Path, words: &[W]) -> Result<String, String> {
    let output = output(program, words)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(complaint(program, &output)),
    }
}

/// Runs a command to its end, however that is.
pub(crate) fn output<W: AsRef<OsStr>>(program: &Path, words: &[W]) -> Result<Output, String> {
    Command::new(program)
        .args(words)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))
}

/// How a command failed, in its own words.
pub(crate) fn complaint(program: &Path, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let mut said = message(&said)
        .unwrap_or_else(|| said.into_owned())
        .trim()
        .replace('\n', "; ");
    while said.len() > LONGEST {
        said.pop();
    }
    let name = program.file_name().unwrap_or_default().display();
    match said.is_empty() {
        true => format!("{name}: {}", output.status),
        false => format!("{name}: {said}"),
    }
}

/// The message of an error that memlane printed as a document.
fn message(said: &str) -> Option<String> {
    let document: serde_json::Value = serde_json::from_str(said).ok()?;
    Some(document["message"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_says_why_in_its_own_words() {
        let shell = Path::new("/bin/sh");
        assert_eq!(run(shell, &["-c", "echo a"]).as_deref(), Ok("a\n"));
        let why = run(shell, &["-c", "echo no >&2; exit 3"]).expect_err("fails");
        assert_eq!(why, "sh: no");
        let why = run(shell, &["-c", "exit 3"]).expect_err("fails");
        assert!(why.contains('3'), "{why}");
        assert!(run(Path::new("/nowhere"), &["a"]).is_err());
        let document = "echo '{\"exit_code\": 3,\n\"message\": \"away\"}' >&2; exit 3";
        let why = run(shell, &["-c", document]).expect_err("fails");
        assert_eq!(why, "sh: away");
    }
}
