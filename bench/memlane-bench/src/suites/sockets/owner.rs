//! Who runs programs that refuse to be root.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use rustix::process::geteuid;

use crate::runner::proc::Scratch;
use crate::runner::programs::Programs;

/// The variable that names the preload library, and what the library is called.
const NAMED: &str = "MEMLANE_PRELOAD";
const LIBRARY: &str = "libmemlane_preload.so";
/// Of the user without rights, where /etc/passwd does not know `nobody`.
const NOBODY: u32 = 65534;

/// A user, with a folder of their own. It is whoever runs the bench, or `nobody` in the place of root.
pub(in crate::suites) struct Owner {
    /// User and group; `None`: those of the bench.
    ids: Option<(u32, u32)>,
    /// Their home.
    pub(in crate::suites) home: PathBuf,
    /// The `memlane` command where this user can start it.
    pub(in crate::suites) memlane: PathBuf,
    /// The library, where they can load it; `None`: the one that the command finds by itself.
    library: Option<PathBuf>,
}

impl Owner {
    /// Makes the folder. What is built may lie where only root gets in, so another user has copies of it.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(in crate::suites) fn new(
        programs: &Programs,
        scratch: &Scratch,
        hint: &str,
    ) -> anyhow::Result<Owner> {
        let home = scratch.name(hint);
        fs::create_dir(&home)?;
        if !geteuid().is_root() {
            return Ok(Owner {
                ids: None,
                home,
                memlane: programs.memlane.clone(),
                library: None,
            });
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let ids = ids_of(&users, "nobody").unwrap_or((NOBODY, NOBODY));
        chown(&home, Some(ids.0), Some(ids.1))?;
        let library = match std::env::var_os(NAMED).filter(|name| !name.is_empty()) {
            Some(named) => Some(PathBuf::from(named)),
            None => Some(programs.memlane.with_file_name(LIBRARY)).filter(|file| file.is_file()),
        };
        Ok(Owner {
            ids: Some(ids),
            memlane: copy(&programs.memlane, &home)?,
            library: library.map(|file| copy(&file, &home)).transpose()?,
            home,
        })
    }

    /// `command` is run by them.
    pub(in crate::suites) fn runs(&self, command: &mut Command) {
        if let Some((user, group)) = self.ids {
            command.uid(user).gid(group);
        }
        if let Some(library) = &self.library {
            command.env(NAMED, library);
        }
        command.current_dir(&self.home).env("HOME", &self.home);
    }
}

fn copy(file: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let to = folder.join(file.file_name().context("a file without a name")?);
    fs::copy(file, &to).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(to)
}

/// User and group by the lines of /etc/passwd.
fn ids_of(users: &str, name: &str) -> Option<(u32, u32)> {
    let mut lines = users.lines().map(|line| line.split(':'));
    let mut fields =
        lines.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    let user = fields.nth(1)?.parse().ok()?;
    Some((user, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/bash\n\
        nobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin\n";

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        assert_eq!(ids_of(USERS, "nobody"), Some((65534, 65533)));
        assert_eq!(ids_of(USERS, "body"), None);
    }

    #[test]
    fn an_owner_has_a_home_in_which_they_may_write_and_a_command_that_they_can_start() {
        let scratch = Scratch::new().expect("a folder");
        let built = scratch.name("memlane");
        fs::write(&built, "").expect("a file");
        let programs = Programs {
            memlane: built,
            ..Programs::nowhere()
        };
        let owner = Owner::new(&programs, &scratch, "owner").expect("an owner");
        assert!(owner.memlane.is_file());
        let mut command = Command::new("sh");
        command.args(["-c", "echo there > mine && id -u"]);
        owner.runs(&mut command);
        let said = command.output().expect("sh");
        assert!(said.status.success(), "{said:?}");
        assert!(owner.home.join("mine").is_file());
        let user = String::from_utf8_lossy(&said.stdout);
        assert_ne!(user.trim(), "0");
    }
}
