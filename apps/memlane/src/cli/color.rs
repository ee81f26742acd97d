//! Colours in the output: on a terminal, unless `NO_COLOR` or `--color` says otherwise.

use std::io::IsTerminal as _;

/// `--color`.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Color {
    /// On a terminal with colours, unless NO_COLOR is set
    #[default]
    Auto,
    /// In files and pipes too
    Always,
    /// Never
    Never,
}

/// What a text means; each meaning has a colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tone {
    Good,
    Bad,
    Head,
}

/// Colours text, or leaves it as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Painter(bool);

impl Color {
    /// The painter for stdout.
    pub(crate) fn on_stdout(self) -> Painter {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = std::io::stdout().is_terminal() && !dumb;
        Painter(self.is_on(set("NO_COLOR"), terminal))
    }

    fn is_on(self, no_color: bool, terminal: bool) -> bool {
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && !no_color,
        }
    }
}

impl Painter {
    /// Whether text is coloured.
    pub(crate) fn is_on(self) -> bool {
        self.0
    }

    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Head => "1",
        };
        match self.0 {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_beats_the_variable_and_the_variable_the_terminal() {
        assert!(Color::Auto.is_on(false, true));
        assert!(!Color::Auto.is_on(true, true));
        assert!(!Color::Auto.is_on(false, false));
        assert!(Color::Always.is_on(true, false));
        assert!(!Color::Never.is_on(false, true));
        assert_eq!(Painter(false).paint("x", Tone::Bad), "x");
        assert_eq!(Painter(true).paint("x", Tone::Bad), "\x1b[31mx\x1b[0m");
    }
}
