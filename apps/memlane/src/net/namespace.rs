//! Ends in another network namespace: `tap:NAME?netns=…`. A device's descriptor stays what it is, wherever it is used, so only
//! opening it takes place there.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cli::exit::{Exit, fail};

/// Where `ip netns` keeps the namespaces that have names.
const NAMED: &str = "/run/netns";

/// The file of a namespace: a path as it is, or a name as `ip netns` lists it.
fn file_of(namespace: &str) -> PathBuf {
    match namespace.contains('/') {
        true => namespace.into(),
        false => Path::new(NAMED).join(namespace),
    }
}

/// Calls `open` in this network namespace; without one, where we are. A thread of its own enters the namespace, and ends with
/// the call.
///
/// # Errors
/// There is no such namespace, or this process may not enter it.
pub(super) fn inside<T: Send>(
    namespace: Option<&str>,
    open: impl FnOnce() -> T + Send,
) -> anyhow::Result<T> {
    let Some(namespace) = namespace else {
        return Ok(open());
    };
    let path = file_of(namespace);
    let file = File::open(&path).map_err(|error| unknown(&path, &error))?;
    std::thread::scope(|scope| {
        let entered = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| refused(&path, error.into()))?;
            Ok(open())
        });
        let died = |_| Err(fail(Exit::Failed, "a thread ended badly"));
        entered.join().unwrap_or_else(died)
    })
}

fn unknown(path: &Path, error: &io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => {
            ": `ip netns` lists the namespaces that have names; /proc/PID/ns/net is that of a process"
        }
        _ => "",
    };
    fail(
        Exit::Failed,
        format!("netns={}: {error}{advice}", path.display()),
    )
}

fn refused(path: &Path, error: io::Error) -> anyhow::Error {
    let (exit, advice) = match error.kind() {
        io::ErrorKind::PermissionDenied => (Exit::Unsupported, ": this needs CAP_SYS_ADMIN"),
        _ => (Exit::Failed, ": this is no network namespace"),
    };
    fail(exit, format!("netns={}: {error}{advice}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_name_or_a_path() {
        assert_eq!(file_of("red"), Path::new("/run/netns/red"));
        assert_eq!(file_of("/proc/7/ns/net"), Path::new("/proc/7/ns/net"));
    }

    #[test]
    fn without_a_namespace_nothing_is_entered() {
        let here = std::thread::current().id();
        let called = inside(None, || std::thread::current().id());
        assert_eq!(called.expect("it is called"), here);
    }

    #[test]
    fn what_is_no_namespace_is_refused_with_advice() {
        for (namespace, advice) in [
            ("no-such-namespace", "`ip netns` lists"),
            ("/proc/self/exe", "netns=/proc/self/exe"),
        ] {
            let error = inside(Some(namespace), || ()).expect_err("it is refused");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
