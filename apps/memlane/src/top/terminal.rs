//! The terminal: taken for the screen, and given back as it was however the command ends: by a key, an error, a signal
//! or a panic.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::model::Press;
use crate::service;

/// Longest wait for a key, so that a signal is noticed soon.
const GLANCE: Duration = Duration::from_millis(100);

/// What happened.
pub(super) enum Event {
    Press(Press),
    /// Another size, say: the screen is to be drawn anew.
    Other,
    /// It is time for another look.
    Time,
    /// A signal.
    End,
}

/// Given back when it is dropped; a panic gives it back by the hook that `ratatui` sets.
pub(super) struct Held {
    terminal: DefaultTerminal,
    bell: OwnedFd,
}

impl Held {
    pub(super) fn new(colors: bool) -> anyhow::Result<Held> {
        // It looks at NO_COLOR itself, and would not know of --color.
        ratatui::crossterm::style::force_color_output(colors);
        let bell = service::bell_of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT])?;
        let terminal = ratatui::try_init()?;
        Ok(Held { terminal, bell })
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
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Event::Time);
            }
            match event::poll(left.min(GLANCE)) {
                Ok(true) => return Ok(translated(&event::read()?)),
                Ok(false) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
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

impl Drop for Held {
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
