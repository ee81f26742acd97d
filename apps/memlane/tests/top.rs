//! `memlane top` on a terminal of its own, and without one.

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::mem::offset_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{Holder, Page, memlane, stderr, stdout};
use memlane_core::stats::{ConnEntry, ConnState, Counter};

const LIMIT: Duration = Duration::from_secs(30);

/// `memlane top` on a pseudo terminal.
struct Session {
    child: Child,
    keys: File,
    /// The program's side, held open so that its settings can be looked at when the program has gone.
    terminal: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

fn winsize(columns: u16, rows: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Session {
    fn new(flags: &[&str], environment: &[(&str, &str)]) -> Session {
        let (mut own, mut theirs) = (0, 0);
        // SAFETY: two places for numbers, no name and no settings, and a size that is only read.
        let (keys, terminal) = unsafe {
            let opened = libc::openpty(
                &raw mut own,
                &raw mut theirs,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &raw const *Box::new(winsize(80, 24)),
            );
            assert_eq!(opened, 0);
            (File::from_raw_fd(own), File::from_raw_fd(theirs))
        };
        let end = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = memlane();
        command.arg("top").args(flags);
        command.env_remove("NO_COLOR").env("TERM", "xterm");
        command.envs(environment.iter().copied());
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: both are plain system calls, on descriptor 0, which is the terminal.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let mut reader = keys.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut some) {
                if sender.send(some[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Session {
            child,
            keys,
            terminal,
            screen,
            seen: String::new(),
        }
    }

    /// Waits until the program has written this since the last time.
    #[track_caller]
    fn sees(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.seen.contains(text) {
            assert!(begin.elapsed() < LIMIT, "no {text:?} in {:?}", self.seen);
            if let Ok(more) = self.screen.recv_timeout(Duration::from_millis(50)) {
                self.seen.push_str(&String::from_utf8_lossy(&more));
            }
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.seen.clear();
        self.keys.write_all(keys).unwrap();
    }

    /// Does the terminal echo, and wait for whole lines?
    fn is_plain(&self) -> bool {
        // SAFETY: an all-zero termios is a valid value, and the call fills it.
        let settings = unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            assert_eq!(
                libc::tcgetattr(self.terminal.as_raw_fd(), &raw mut settings),
                0
            );
            settings
        };
        let both = libc::ICANON | libc::ECHO;
        settings.c_lflag & both == both
    }

    /// Waits until it is in this state of proc(5).
    #[track_caller]
    fn is_in_state(&self, state: char) {
        let begin = Instant::now();
        let path = format!("/proc/{}/stat", self.child.id());
        while !std::fs::read_to_string(&path)
            .unwrap()
            .contains(&format!(") {state} "))
        {
            assert!(begin.elapsed() < LIMIT, "it is never in state {state}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Its exit code, once it has gone; the terminal must be as it was before.
    #[track_caller]
    fn ends(mut self) -> Option<i32> {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < LIMIT, "it goes on");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(self.is_plain(), "the terminal is left raw");
        self.sees("\x1b[?1049l");
        self.sees("\x1b[?25h");
        status.code()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn page() -> Page {
    let page = Page::new();
    page.counter(Counter::Conns, 9);
    page.entry(
        0,
        &[(offset_of!(ConnEntry, state), ConnState::Memlane as u32)],
        &[],
    );
    page.addresses(0, ("::ffff:127.0.0.1", 4567), ("::ffff:127.0.0.1", 80));
    page
}

#[test]
fn a_screen_answers_keys_and_a_new_size_and_a_key_ends_it() {
    let page = page();
    let holder = Holder::new(&page);
    let pid = holder.pid().to_string();
    let mut top = Session::new(&["--delay", "200ms", "--filter", &pid], &[]);
    top.sees("\x1b[?1049h");
    top.sees("REASON");
    top.sees(&pid);
    assert!(!top.is_plain());
    top.press(b"c");
    top.sees("127.0.0.1:4567");
    top.press(b"?");
    top.sees("quit");
    top.press(b" ");
    top.press(b"p");
    top.sees("PAUSED");
    top.seen.clear();
    // A wider one shows the keys at its own lower end.
    let size = winsize(100, 40);
    // SAFETY: the call reads a `winsize`.
    let set = unsafe { libc::ioctl(top.keys.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(set, 0);
    top.sees("\x1b[40;1H");
    top.press(b"q");
    assert_eq!(top.ends(), Some(0));
}

#[test]
fn whatever_ends_it_the_terminal_is_given_back() {
    for how in ["TERM", "HUP", "INT", "QUIT", "\x03"] {
        let mut top = Session::new(&[], &[]);
        top.sees("REASON");
        assert!(!top.is_plain());
        match how {
            "\x03" => top.press(how.as_bytes()),
            signal => top.signal(signal),
        }
        assert_eq!(top.ends(), Some(0), "{how:?}");
    }
}

#[test]
fn a_stop_gives_the_terminal_back_and_takes_it_again() {
    for how in ["\x1a", "TSTP", "STOP"] {
        let mut top = Session::new(&[], &[]);
        top.sees("REASON");
        top.seen.clear();
        match how {
            "\x1a" => top.press(how.as_bytes()),
            signal => top.signal(signal),
        }
        top.is_in_state('T');
        // Who is stopped from outside, and cannot help it, leaves it raw; a shell mends that.
        if how != "STOP" {
            top.sees("\x1b[?1049l");
            assert!(top.is_plain(), "{how:?}");
        }
        top.seen.clear();
        top.signal("CONT");
        top.sees("\x1b[?1049h");
        top.sees("REASON");
        assert!(!top.is_plain(), "{how:?}");
        top.press(b"q");
        assert_eq!(top.ends(), Some(0), "{how:?}");
    }
}

#[test]
fn no_color_is_no_color_and_a_flag_is_stronger() {
    let page = page();
    let holder = Holder::new(&page);
    let pid = holder.pid().to_string();
    let flags = ["--delay", "100ms", "--filter", &pid];
    for (more, environment, colors) in [
        (&[][..], &[][..], true),
        (&[], &[("NO_COLOR", "1")], false),
        (&["--color", "never"], &[], false),
        (&["--color", "always"], &[("NO_COLOR", "1")], true),
    ] {
        let mut top = Session::new(&[&flags[..], more].concat(), environment);
        top.sees(&pid);
        // Only what carries something has a colour.
        for sent in 1..400 {
            page.counter(Counter::TxRingBytes, sent * 1_000_000);
            std::thread::sleep(Duration::from_millis(10));
            if sent > 60 && (top.has_colors() || !colors) {
                break;
            }
        }
        assert_eq!(
            top.has_colors(),
            colors,
            "{more:?} {environment:?}: {:?}",
            top.seen
        );
        top.press(b"q");
        top.ends();
    }
}

impl Session {
    /// Green in one of its spellings.
    fn has_colors(&mut self) -> bool {
        while let Ok(more) = self.screen.try_recv() {
            self.seen.push_str(&String::from_utf8_lossy(&more));
        }
        ["\x1b[32m", ";32m", "38;5;2m", "38;5;2;"]
            .iter()
            .any(|code| self.seen.contains(code))
    }
}

#[test]
fn without_a_terminal_it_prints_one_screen_or_says_how() {
    let page = page();
    let holder = Holder::new(&page);
    let pid = holder.pid().to_string();
    let output = memlane().arg("top").stdin(Stdio::null()).output().unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(3), String::new())
    );
    assert!(stderr(&output).contains("--once"), "{}", stderr(&output));
    let once = |flags: &[&str]| {
        let mut command = memlane();
        command.args(["top", "--once", "--delay", "100ms", "--filter", &pid]);
        let output = command.args(flags).env("COLUMNS", "100").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let processes = once(&[]);
    assert!(processes.starts_with("memlane top: "), "{processes}");
    let line = processes.lines().last().unwrap();
    assert_eq!(
        line.split_ascii_whitespace().next(),
        Some(pid.as_str()),
        "{processes}"
    );
    assert!(!processes.contains('\x1b') && !processes.contains("q quit"));
    let connections = once(&["--connections", "--sort", "name"]);
    let name = format!("sleep/{pid}");
    assert!(
        connections.lines().last().unwrap().starts_with(&name),
        "{connections}"
    );
    assert!(connections.contains(" 127.0.0.1:4567 ") && connections.contains("MEMLANE"));
    let wrong = memlane().args(["top", "--sort", "size"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
