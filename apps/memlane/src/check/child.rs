//! A hidden verb of this program, started under `memlane run --upgrade eager`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, anyhow};

/// Ends with its owner: stdin closes, and the process is killed if that doesn't do.
pub(super) struct Helper {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Helper {
    pub(super) fn start(verb: &[&str]) -> anyhow::Result<Helper> {
        let me = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(&me)
            .args(["run", "--upgrade", "eager", "--"])
            .arg(&me)
            .args(verb)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", me.display()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("no pipe from the helper")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Helper {
            child,
            stdin,
            lines,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the helper prints.
    pub(super) fn line(&mut self, patience: Duration) -> anyhow::Result<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(anyhow!("no answer within {patience:?}")),
            Err(RecvTimeoutError::Disconnected) => Err(self.last_words()),
        }
    }

    pub(super) fn ask(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("the helper has ended")?;
        writeln!(stdin, "{line}").map_err(|_| self.last_words())
    }

    /// What a helper that has ended had to say.
    fn last_words(&mut self) -> anyhow::Error {
        self.stdin = None;
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(stderr) = self.child.stderr.as_mut() {
            let _ = stderr.take(4096).read_to_string(&mut text);
        }
        match text.trim() {
            "" => anyhow!("the helper process ended"),
            words => anyhow!("{}", words.strip_prefix("memlane: ").unwrap_or(words)),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
