//! Which program a command really is, and why a preloaded library would not get into it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::elf::Elf;
use super::{entering, exec, golang};

/// The kernel follows no more `#!` lines than this.
const MAX_SCRIPTS: usize = 5;
/// … and reads no more of one.
const MAX_LINE: u64 = 256;

/// Why `command` will stay on TCP; `None` when the library will get into it, or nothing can be said.
pub(crate) fn stays_on_tcp(command: &OsStr) -> Option<String> {
    let path = search(command)?;
    let program = interpreter(path.clone())?;
    let why = obstacle(&program)?;
    Some(match program == path {
        true => why,
        false => format!("its interpreter {} is {why}", program.display()),
    })
}

/// The program that a command really is, if no loader comes to it.
pub(crate) fn without_loader(command: &OsStr) -> Option<PathBuf> {
    let program = interpreter(search(command)?)?;
    Elf::read(&program)?.interp.is_none().then_some(program)
}

/// The file that exec would take.
fn search(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    env::split_paths(&path)
        .map(|dir| dir.join(command))
        .find(|file| file.is_file() && exec::executable(file.as_os_str()))
}

/// Follows `#!` lines to a program that is no script.
fn interpreter(mut path: PathBuf) -> Option<PathBuf> {
    for _ in 0..MAX_SCRIPTS {
        match script(&path) {
            Some(next) => path = next,
            None => return Some(path),
        }
    }
    None
}

/// What the `#!` line of a script starts, looking through env(1).
fn script(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(path)
        .ok()?
        .take(MAX_LINE)
        .read_to_end(&mut head)
        .ok()?;
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|&b| b == b'\n').next()?;
    let mut words = line
        .split(|b| b" \t".contains(b))
        .filter(|word| !word.is_empty())
        .map(|word| OsString::from_vec(word.to_vec()));
    let first = PathBuf::from(words.next()?);
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    words
        .find(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='))
        .and_then(|command| search(&command))
        .or(Some(first))
}

/// What keeps the library out of this program.
pub(crate) fn obstacle(program: &Path) -> Option<String> {
    let elf = Elf::read(program)?;
    let ours = Elf::read(&env::current_exe().ok()?)?.target;
    if elf.target != ours {
        return Some(match elf.target.wide == ours.wide {
            true => format!(
                "built for another machine (ELF machine {})",
                elf.target.machine
            ),
            false => "built for another word size".to_owned(),
        });
    }
    if elf.interp.is_none() {
        return entering::obstacle(program, elf.go);
    }
    if elf.go
        && let Some(why) = golang::obstacle(program)
    {
        return Some(why);
    }
    privileged(program)
}

/// The loader drops LD_PRELOAD when exec raises privileges.
fn privileged(program: &Path) -> Option<String> {
    let meta = fs::metadata(program).ok()?;
    let mode = meta.permissions().mode();
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let what = if mode & 0o4000 != 0 && meta.uid() != uid {
        "setuid"
    } else if mode & 0o2010 == 0o2010 && meta.gid() != gid {
        "setgid"
    } else if uid != 0 && exec::has_xattr(program, c"security.capability") {
        "given file capabilities (setcap)"
    } else {
        return None;
    };
    (!exec::privileges_are_off(program)).then(|| format!("{what}: the loader ignores LD_PRELOAD"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir =
                env::temp_dir().join(format!("memlane-program-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }

        fn script(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_script_leads_to_its_interpreter_also_through_env() {
        let dir = Dir::new("script");
        let plain = dir.script("plain", "#! /bin/sh -e\necho\n");
        assert_eq!(interpreter(plain), Some("/bin/sh".into()));
        let env = dir.script("env", "#!/usr/bin/env -S A=1 sh -e\n");
        assert_eq!(interpreter(env), search(OsStr::new("sh")));
        let nested = dir.script("nested", &format!("#!{}/plain\n", dir.0.display()));
        assert_eq!(interpreter(nested), Some("/bin/sh".into()));
    }

    #[test]
    fn a_script_that_is_its_own_interpreter_ends() {
        let dir = Dir::new("loop");
        let path = dir.0.join("loop");
        dir.script("loop", &format!("#!{}\n", path.display()));
        assert_eq!(interpreter(path), None);
    }

    #[test]
    fn an_ordinary_program_has_no_obstacle() {
        assert_eq!(stays_on_tcp(OsStr::new("sh")), None);
        assert_eq!(stays_on_tcp(OsStr::new("no-such-program-anywhere")), None);
    }
}
