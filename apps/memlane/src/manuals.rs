//! The hidden verb `__pages`, for installation: manual pages and completions from the same definition as `--help`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::Cli;
use crate::cli::exit::Exit;

/// The day that the pages show: that of the flags, not of the build, so that two builds give the same bytes.
const DATE: &str = "2026-11-22";
/// The page on concepts, which no flag can tell.
const CONCEPTS: &str = include_str!("../../../packaging/man/memlane.7");

/// Write manual pages and completions, as they are installed
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What will be PREFIX/share; made if it is not there
    share: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    for (name, content) in all()? {
        let to = args.share.join(name);
        write(&to, &content).with_context(|| to.display().to_string())?;
    }
    Ok(())
}

fn write(to: &Path, content: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(to, content)
}

/// Every file, below PREFIX/share.
fn all() -> anyhow::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut command = shown();
    command.build();
    let mut files = Vec::new();
    manuals(&command, &mut files)?;
    files.push(("man/man7/memlane.7".into(), CONCEPTS.into()));
    for (shell, name) in [
        (Shell::Bash, "bash-completion/completions/memlane"),
        (Shell::Zsh, "zsh/vendor-completions/_memlane"),
        (Shell::Fish, "fish/vendor_completions.d/memlane.fish"),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut shown(), "memlane", &mut text);
        files.push((name.into(), text));
    }
    Ok(files)
}

/// The command without what nobody is to see: completions would offer it.
fn shown() -> Command {
    let whole = Cli::command();
    let bare = Command::new("memlane")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .disable_help_subcommand(true);
    let about = whole.get_about().cloned().unwrap_or_default();
    let verbs = whole.get_subcommands().filter(|verb| !verb.is_hide_set());
    bare.about(about).subcommands(verbs.cloned())
}

/// A page for a command, and for each below it.
fn manuals(command: &Command, files: &mut Vec<(PathBuf, Vec<u8>)>) -> anyhow::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        manuals(verb, files)?;
    }
    let title = command.get_display_name().unwrap_or("memlane");
    let man = Man::new(command.clone())
        .title(title.to_uppercase())
        .date(DATE)
        .source(concat!("memlane ", env!("CARGO_PKG_VERSION")))
        .manual("memlane");
    let name = Path::new("man/man1").join(man.get_filename());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|one| !one.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|verb| !verb.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    ends(command, &mut page)?;
    files.push((name, tidied(&page)));
    Ok(())
}

/// What all pages end with: exit codes, and where to go on.
fn ends(command: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    let name = command.get_display_name().unwrap_or("memlane");
    for exit in Exit::ALL.iter().filter(|exit| concerns(**exit, name)) {
        let meaning = exit.meaning().replace('`', "");
        roff.control("TP", []);
        roff.text([bold(exit.code().to_string())]);
        roff.text([roman(meaning)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    let parent = name
        .rsplit_once('-')
        .map_or("memlane", |(parent, _)| parent);
    let mut others = vec![("memlane", "7")];
    if name != "memlane" {
        others.insert(0, (parent, "1"));
    }
    let last = others.len() - 1;
    for (at, (page, section)) in others.into_iter().enumerate() {
        let comma = if at == last { "" } else { "," };
        roff.control("BR", [page, &format!("({section}){comma}")]);
    }
    roff.to_writer(page)
}

/// May this command end with this code?
fn concerns(exit: Exit, name: &str) -> bool {
    match exit {
        Exit::Lost => name == "memlane-net-sink",
        Exit::NobodyCame => name.starts_with("memlane-net"),
        Exit::Launcher | Exit::NotExecutable | Exit::NotFound => name == "memlane-run",
        Exit::Usage => name != "memlane-run",
        _ => true,
    }
}

/// Without what the generator leaves over: blanks at ends of lines, empty lines, line breaks after line breaks, and the
/// preamble that it writes before each section; in ASCII, which every formatter takes.
fn tidied(page: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(page);
    let mut tidy: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim_end) {
        let preamble = line.contains(".ds Aq") && tidy.contains(&line);
        let again = line == ".br" && tidy.last() == Some(&line);
        if !(line.is_empty() || preamble || again) {
            tidy.push(line);
        }
    }
    let ascii = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => format!("\\[u{:04X}]", u32::from(c)),
    };
    let text = tidy.join("\n") + "\n";
    text.chars().map(ascii).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_that_is_shown_has_a_page_and_no_hidden_one_has() {
        let files = all().unwrap();
        let has = |name: &str| files.iter().any(|(file, _)| file.ends_with(name));
        for verb in Cli::command().get_subcommands() {
            let page = format!("memlane-{}.1", verb.get_name());
            assert_eq!(has(&page), !verb.is_hide_set(), "{page}");
        }
        assert!(has("memlane.1") && has("memlane-net-link.1") && has("memlane.7"));
        for (file, content) in &files {
            let text = String::from_utf8_lossy(content);
            assert!(!text.contains("__echo"), "{}", file.display());
        }
    }
}
