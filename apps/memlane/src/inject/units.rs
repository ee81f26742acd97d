//! The edits as drop-ins of systemd's: `memlane enable redis.service`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use memlane_socket::config::DEFAULT_DOMAIN;

use super::{Edits, Place, tree};
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::run;

/// Where an administrator's drop-ins lie (systemd.unit(5)).
const DROP_INS: &str = "/etc/systemd/system";
/// Ours in a unit's folder.
const FILE: &str = "50-memlane.conf";
/// Where the library is laid out for services and containers.
pub(crate) const TREE: &str = "/var/lib/memlane/inject";

/// Put memlane into services of this host.
///
/// Writes a drop-in for each unit, so that it starts with the library preloaded. A unit that runs goes on without it until you
/// restart it.
#[derive(clap::Args, Debug)]
pub(crate) struct Enable {
    #[command(flatten)]
    units: Units,
}

/// Take memlane out of services again.
#[derive(clap::Args, Debug)]
pub(crate) struct Disable {
    #[command(flatten)]
    units: Units,
}

#[derive(clap::Args, Debug)]
struct Units {
    /// Names of units; .service may be left out
    #[arg(value_name = "UNIT", required = true, value_parser = unit)]
    units: Vec<String>,
    /// Folder of the drop-ins
    #[arg(long, value_name = "DIR", default_value = DROP_INS, hide = true)]
    drop_ins: PathBuf,
    /// Folder in which the library is laid out
    #[arg(long, value_name = "DIR", default_value = TREE, hide = true)]
    tree: PathBuf,
}

fn unit(text: &str) -> Result<String, String> {
    let good = !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b))
        && !text.starts_with('.');
    match (good, text.contains('.')) {
        (true, false) => Ok(format!("{text}.service")),
        (true, true) if text.ends_with(".service") => Ok(text.to_owned()),
        _ => Err("expected the name of a service".to_owned()),
    }
}

pub(crate) fn enable(args: &Enable) -> anyhow::Result<()> {
    let args = &args.units;
    let library = run::library::find(std::env::var_os("MEMLANE_PRELOAD"))?;
    tree::lay_out(&library, &args.tree)
        .with_context(|| format!("cannot lay out the library in {}", args.tree.display()))?;
    let edits = Edits::new(Place::Host, &args.tree, Path::new(DEFAULT_DOMAIN));
    for unit in &args.units {
        let file = drop_in(args, unit);
        let theirs = preloaded_by_itself(unit);
        write(&file, &text(&edits, theirs.as_deref()))
            .with_context(|| file.display().to_string())?;
        out::print(&format!("wrote {}\n", file.display()))?;
    }
    after(args)
}

pub(crate) fn disable(args: &Disable) -> anyhow::Result<()> {
    let args = &args.units;
    for unit in &args.units {
        let file = drop_in(args, unit);
        fs::remove_file(&file).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => fail(Exit::Failed, format!("{unit} is not enabled")),
            _ => anyhow::Error::new(e).context(file.display().to_string()),
        })?;
        // Ours only if nothing else is in it.
        if let Some(folder) = file.parent() {
            let _ = fs::remove_dir(folder);
        }
        out::print(&format!("removed {}\n", file.display()))?;
    }
    after(args)
}

fn drop_in(args: &Units, unit: &str) -> PathBuf {
    args.drop_ins.join(format!("{unit}.d")).join(FILE)
}

fn write(file: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, text)
}

/// The drop-in. `theirs` is what the unit itself preloads, which stays.
fn text(edits: &Edits, theirs: Option<&str>) -> String {
    let mut text =
        String::from("# Made by `memlane enable`; `memlane disable` removes it.\n[Service]\n");
    for (name, value) in &edits.variables {
        let value = match theirs {
            Some(theirs) if *name == "LD_PRELOAD" => format!("{theirs}:{value}"),
            _ => value.clone(),
        };
        text.push_str(&format!("Environment=\"{name}={}\"\n", escaped(&value)));
    }
    text
}

/// For a value in quotation marks (systemd.syntax(7)); `%` begins a specifier.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
}

/// The LD_PRELOAD that the unit sets without us, if systemd is there to say.
fn preloaded_by_itself(unit: &str) -> Option<String> {
    let said = Command::new("systemctl")
        .args(["show", "--property=Environment", "--value", "--", unit])
        .output()
        .ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    let value = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("LD_PRELOAD="))?;
    let others = value
        .split(':')
        .filter(|path| !path.contains("/$LIB/libmemlane_preload.so"));
    let others: Vec<&str> = others.filter(|path| !path.is_empty()).collect();
    (!others.is_empty()).then(|| others.join(":"))
}

/// systemd reads the drop-ins, if it runs here; what runs already must be restarted.
fn after(args: &Units) -> anyhow::Result<()> {
    let reloaded = Path::new("/run/systemd/system").is_dir()
        && Command::new("systemctl")
            .arg("daemon-reload")
            .status()
            .is_ok_and(|status| status.success());
    let mut text = String::new();
    if !reloaded {
        text.push_str("systemd was not told: run systemctl daemon-reload\n");
    }
    text.push_str(&format!(
        "takes effect when a unit is restarted: systemctl restart {}\n",
        args.units.join(" ")
    ));
    out::print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_kind_is_that_of_a_service() {
        assert_eq!(unit("redis"), Ok("redis.service".into()));
        assert_eq!(unit("pg@15.service"), Ok("pg@15.service".into()));
        for wrong in ["", "../x", "a/b", "cups.socket", ".service"] {
            assert!(unit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_unit_preloads_itself_stays_and_comes_first() {
        let edits = Edits::new(Place::Host, Path::new("/t"), Path::new("/run/d"));
        let own = text(&edits, Some("/lib/jemalloc.so"));
        assert!(
            own.contains(
                "Environment=\"LD_PRELOAD=/lib/jemalloc.so:/t/$LIB/libmemlane_preload.so\"\n"
            ),
            "{own}"
        );
        assert!(text(&edits, None).contains("\"MEMLANE_DOMAIN=/run/d\""));
    }

    #[test]
    fn a_percent_sign_is_no_specifier() {
        assert_eq!(escaped("a%b\"c\\"), "a%%b\\\"c\\\\");
    }
}
