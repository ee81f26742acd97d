//! What keeps a Go program off the lane, as far as its file shows it. The library decides by the same rules when it is loaded.

use std::fs;
use std::path::Path;

use memchr::memmem;
use memlane_core::golang::{self, Syscall6};

/// Why the program stays on TCP; `None`: nothing in its file says so. It asks for a dynamic loader.
pub(super) fn obstacle(program: &Path) -> Option<String> {
    why(&fs::read(program).ok()?)
}

fn why(file: &[u8]) -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("a Go program, which memlane knows on amd64 only".to_owned());
    }
    let Some(version) = golang::version(file) else {
        return Some("a Go program without a record of its release".to_owned());
    };
    let Some(syscall6) = Syscall6::of(version) else {
        return Some(format!(
            "a Go program built by {version}, a release that memlane does not know"
        ));
    };
    let names = |name: &[u8]| memmem::find(file, name).is_some();
    if !names(b"pthread_create\0") {
        return Some("a Go program without libc's threads (CGO_ENABLED=0)".to_owned());
    }
    if names(b"dlopen\0") && golang::names_plugins(file) {
        return Some("a Go program that can load plugins".to_owned());
    }
    syscall6
        .find(file)
        .is_none()
        .then(|| "a Go program without its release's function for system calls".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_says_little_is_not_served() {
        assert!(why(b"").is_some_and(|why| why.contains("record")));
        let mut file = b"\xff Go buildinf:\x08\x02".to_vec();
        file.resize(32, 0);
        file.extend_from_slice(b"\x09go1.19.13");
        assert!(why(&file).is_some_and(|why| why.contains("go1.19.13")));
        file.truncate(32);
        file.extend_from_slice(b"\x08go1.26.8\0dynamic\0");
        assert!(why(&file).is_some_and(|why| why.contains("libc's threads")));
        file.extend_from_slice(b"pthread_create\0dlopen\0");
        assert!(why(&file).is_some_and(|why| why.contains("function")));
        file.extend_from_slice(b"plugin.open\0");
        assert!(why(&file).is_some_and(|why| why.contains("plugins")));
    }
}
