//! The terminal: taken for the screen, and given back as it was however the command ends: by a key, an error, a signal
//! or a panic; and while the command is stopped (Ctrl-Z), which takes it again when it goes on.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::model::Press;
use crate::daemon::service;

/// Longest wait for a key, so that a signal is noticed soon.
const GLANCE: Duration = Duration::from_millis(100);

/// What happened.
pub(super) enum Event {
    Press(Press),
    /// Another size, say: the screen is to be drawn anew.
    Other,
    /// It is time for another look.
    Time,
    /// Ctrl-Z.
    Stop,
    /// A signal.
    End,
}

/// SIGTSTP has come, SIGCONT has. Written by the handler, taken by whoever waits for events.
static STOPS: AtomicBool = AtomicBool::new(false);
static GOES_ON: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: libc::c_int) {
    let which = if signal == libc::SIGCONT {
        &GOES_ON
    } else {
        &STOPS
    };
    which.store(true, Ordering::Relaxed);
}

/// Given back when it is dropped; a panic gives it back by the hook that `ratatui` sets.
pub(super) struct TerminalGuard {
    terminal: DefaultTerminal,
    bell: OwnedFd,
}

impl TerminalGuard {
    pub(super) fn new(colors: bool) -> anyhow::Result<TerminalGuard> {
        // It looks at NO_COLOR itself, and would not know of --color.
        ratatui::crossterm::style::force_color_output(colors);
        let bell = service::bell_of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT])?;
        for signal in [libc::SIGTSTP, libc::SIGCONT] {
            // SAFETY: the handler stores an atomic, and does nothing else.
            unsafe { libc::signal(signal, note as *const () as libc::sighandler_t) };
        }
        let terminal = ratatui::try_init()?;
        Ok(TerminalGuard { terminal, bell })
    }

    pub(super) fn draw(&mut self, what: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.terminal.draw(what)?;
        Ok(())
    }

    /// Waits for something, until `time` at most.
    pub(super) fn event(&mut self, time: Instant) -> anyhow::Result<Event> {
        loop {
            if self.is_over() {
                return Ok(Event::End);
            }
            if STOPS.swap(false, Ordering::Relaxed) {
                self.stop()?;
                return Ok(Event::Other);
            }
            if GOES_ON.swap(false, Ordering::Relaxed) {
                self.take_again()?;
                return Ok(Event::Other);
            }
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Event::Time);
            }
            match event::poll(left.min(GLANCE)) {
                Ok(true) => match translated(&event::read()?) {
                    Event::Stop => STOPS.store(true, Ordering::Relaxed),
                    event => return Ok(event),
                },
                Ok(false) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives the terminal back and stops, as Ctrl-Z would have it; comes back when it goes on.
    fn stop(&mut self) -> anyhow::Result<()> {
        ratatui::restore();
        // SAFETY: no pointers are passed. SIGTSTP has a handler; this has none.
        unsafe { libc::raise(libc::SIGSTOP) };
        // The SIGCONT that ended this stop asks for nothing more: taking it twice would leave raw mode for a moment.
        GOES_ON.store(false, Ordering::Relaxed);
        self.take_again()
    }

    /// After a stop, whoever had the terminal meanwhile has set it as he likes.
    fn take_again(&mut self) -> anyhow::Result<()> {
        disable_raw_mode()?; // else it takes its word for it that it is raw
        enable_raw_mode()?;
        let everything = Clear(ClearType::All);
        execute!(std::io::stdout(), EnterAlternateScreen, everything)?;
        // A new one draws every cell; to clear the old one it would ask where the cursor is.
        self.terminal = DefaultTerminal::new(CrosstermBackend::new(std::io::stdout()))?;
        Ok(())
    }

    fn is_over(&self) -> bool {
        let mut polled = [PollFd::new(&self.bell, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn translated(event: &event::Event) -> Event {
    let event::Event::Key(key) = event else {
        return Event::Other;
    };
    if key.kind == KeyEventKind::Release {
        return Event::Other;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Event::Press(match key.code {
        // In raw mode it is no signal.
        KeyCode::Char('c') if control => return Event::End,
        KeyCode::Char('z') if control => return Event::Stop,
        KeyCode::Char(_) if control => return Event::Other,
        KeyCode::Char(c) => Press::Char(c),
        KeyCode::Tab => Press::Char('\t'),
        KeyCode::Enter => Press::Enter,
        KeyCode::Esc => Press::Escape,
        KeyCode::Backspace => Press::Backspace,
        KeyCode::Up => Press::Up,
        KeyCode::Down => Press::Down,
        KeyCode::PageUp => Press::PageUp,
        KeyCode::PageDown => Press::PageDown,
        KeyCode::Home => Press::Home,
        KeyCode::End => Press::End,
        _ => return Event::Other,
    })
}
