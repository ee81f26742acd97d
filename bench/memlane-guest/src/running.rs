//! A guest that runs: its console, and its end.

use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// What the guest says when the script has ended; the number is its exit status.
pub(crate) const ENDED: &str = "guest-script-ended:";

/// A guest that runs. Dropped, it is ended.
#[derive(Debug)]
pub struct Running {
    child: Child,
    input: ChildStdin,
    heard: Receiver<Vec<u8>>,
    console: String,
    /// What [`Running::line`] has not given out yet begins here.
    told: usize,
    initramfs: PathBuf,
    until: Instant,
}

/// What comes while somebody waits for a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// A line of the console, without its end.
    Line(String),
    /// Nothing, in the time that was given.
    Nothing,
    /// There is nothing more: it ended, or took too long.
    End,
}

/// The result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The script ended well.
    pub ok: bool,
    /// All that was on the console.
    pub console: String,
}

impl Running {
    /// Listens to `child`, whose three standard streams are pipes.
    pub(crate) fn new(mut child: Child, initramfs: PathBuf, limit: Duration) -> Running {
        let (tell, heard) = channel();
        listens(child.stdout.take().expect("a pipe"), tell.clone());
        listens(child.stderr.take().expect("a pipe"), tell);
        Running {
            input: child.stdin.take().expect("a pipe"),
            child,
            heard,
            console: String::new(),
            told: 0,
            initramfs,
            until: Instant::now() + limit,
        }
    }

    /// The next line of the console, if it comes within that time.
    pub fn line(&mut self, within: Duration) -> Heard {
        let until = (Instant::now() + within).min(self.until);
        loop {
            if let Some(end) = self.console[self.told..].find('\n') {
                let line = self.console[self.told..][..end].trim_end().to_owned();
                self.told += end + 1;
                return Heard::Line(line);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(bytes) => self.console += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Timeout) if until < self.until => return Heard::Nothing,
                Err(_) => return Heard::End,
            }
        }
    }

    /// Waits until the guest has said this; `false` if it ended, or took too long, without.
    pub fn hears(&mut self, what: &str) -> bool {
        while !self.console.contains(what) {
            if !self.listen() {
                return false;
            }
        }
        true
    }

    /// Types a line.
    pub fn types(&mut self, line: &str) {
        let _ = writeln!(self.input, "{line}");
        let _ = self.input.flush();
    }

    /// Waits for its end.
    pub fn finish(&mut self) -> Outcome {
        while self.listen() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
        Outcome {
            ok: self.console.contains(&format!("{ENDED} 0")),
            console: self.console.clone(),
        }
    }

    /// The console until now.
    #[must_use]
    pub fn console(&self) -> &str {
        &self.console
    }

    /// The process id of its QEMU.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a power cut does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Takes what comes; `false`: there is nothing more.
    fn listen(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        match self.heard.recv_timeout(left) {
            Ok(bytes) => {
                self.console += &String::from_utf8_lossy(&bytes);
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                self.console += "\n(the guest took too long)\n";
                false
            }
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(&self.initramfs);
    }
}

/// Passes on what comes, in a thread that ends with it.
fn listens(mut from: impl Read + Send + 'static, tell: Sender<Vec<u8>>) {
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let _ = tell.send(bytes[..n].to_vec());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// In the place of a guest: what it says goes to both streams.
    fn running(script: &str) -> Running {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh");
        Running::new(child, PathBuf::new(), Duration::from_secs(60))
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn lines_come_one_by_one_and_whole_and_then_there_is_an_end() {
        let mut guest = running("printf 'one\\r\\n\\ntwo'; read word; echo \" $word\"");
        let line = |text: &str| Heard::Line(text.into());
        assert_eq!(guest.line(LONG), line("one"));
        assert_eq!(guest.line(LONG), line(""));
        assert_eq!(guest.line(Duration::from_millis(50)), Heard::Nothing);
        guest.types("three");
        assert_eq!(guest.line(LONG), line("two three"));
        assert_eq!(guest.line(LONG), Heard::End);
        assert_eq!(guest.console(), "one\r\n\ntwo three\n");
    }

    #[test]
    fn a_guest_is_ok_only_if_its_script_ended_well() {
        assert!(running(&format!("echo {ENDED} 0")).finish().ok);
        assert!(!running(&format!("echo {ENDED} 1 >&2")).finish().ok);
        assert!(!running("").finish().ok);
    }
}
