//! eBPF's sockmap: what one program sends is put straight into the receiving queue of the other one's socket, past TCP and
//! whatever lies between. The kernel's own short cut for two programs of one host, which any row may name as a system.
//!
//! | room | what |
//! |---|---|
//! | `group` | the control group whose programs have it |
//! | `program` | the two programs, as instructions |
//!
//! Two ends find each other by their addresses and ports, so that both must see the same ones: where an address is translated
//! on the way, nothing matches and bytes go by TCP. So do those of a connection over IPv6.

mod group;
mod program;

use std::process::Command;

use anyhow::Context as _;
use memlane_agent::bpf::call::{Map, Program, attach_to_group, attach_to_map, load, make_map};
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use group::Group;

/// `BPF_MAP_TYPE_SOCKHASH`, as all of these from `include/uapi/linux/bpf.h`.
const SOCKHASH: u32 = 18;
/// `BPF_PROG_TYPE_SOCK_OPS`.
const SOCK_OPS: u32 = 13;
/// `BPF_PROG_TYPE_SK_MSG`.
const SK_MSG: u32 = 16;
/// `BPF_CGROUP_SOCK_OPS`.
const CGROUP_SOCK_OPS: u32 = 3;
/// `BPF_SK_MSG_VERDICT`.
const MSG_VERDICT: u32 = 7;
/// Bytes of a descriptor's number, which is what user space could put into the map; the kernel keeps the socket.
const VALUE: u32 = 4;
/// Sockets at a time: more than any row has.
const SOCKETS: u32 = 1 << 16;

/// Programs that are started in it have sockmap between each other, until it is dropped.
pub(crate) struct Sockmap {
    /// Before the group, which can go only when nothing is attached to it.
    _attached: OwnedFd,
    _map: OwnedFd,
    group: Group,
}

impl Sockmap {
    /// Makes the group, and loads the programs.
    ///
    /// # Errors
    /// Why there can be none here.
    pub(crate) fn new() -> anyhow::Result<Sockmap> {
        let map = make_map(Map {
            kind: SOCKHASH,
            key: program::KEY,
            value: VALUE,
            entries: SOCKETS,
        })
        .context("no sockhash map")?;
        let group = Group::new()?;
        let told =
            |what: &'static str| move || format!("the kernel refuses the program that {what}");
        let redirects = load(&Program {
            kind: SK_MSG,
            attach: MSG_VERDICT,
            function: 0,
            name: b"memlane_redirec",
            code: &program::redirects(map.as_raw_fd()),
        })
        .with_context(told("redirects"))?;
        attach_to_map(redirects.as_fd(), map.as_fd(), MSG_VERDICT)
            .with_context(told("redirects"))?;
        let collects = load(&Program {
            kind: SOCK_OPS,
            attach: CGROUP_SOCK_OPS,
            function: 0,
            name: b"memlane_collect",
            code: &program::collects(map.as_raw_fd()),
        })
        .with_context(told("collects sockets"))?;
        let attached = attach_to_group(collects.as_fd(), group.as_fd(), CGROUP_SOCK_OPS)
            .with_context(told("collects sockets"))?;
        Ok(Sockmap {
            _attached: attached,
            _map: map,
            group,
        })
    }

    /// Makes `command` start in the group.
    pub(crate) fn confine(&self, command: &mut Command) {
        self.group.confine(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    /// That it short-circuits is seen where bytes are counted: `tests/suites.rs`.
    #[test]
    fn a_program_starts_in_a_group_of_its_own_which_is_gone_after_it() {
        let sockmap = match Sockmap::new() {
            Ok(sockmap) => sockmap,
            Err(why) => return eprintln!("SKIPPED: no sockmap here: {why:#}"),
        };
        let groups = |inside: bool| {
            let mut command = Command::new("cat");
            command.arg("/proc/self/cgroup").stdout(Stdio::piped());
            if inside {
                sockmap.confine(&mut command);
            }
            let said = command.output().expect("cat");
            assert!(said.status.success(), "{said:?}");
            String::from_utf8_lossy(&said.stdout).into_owned()
        };
        assert!(
            groups(true).contains("0::/memlane-bench-"),
            "{}",
            groups(true)
        );
        assert!(!groups(false).contains("memlane-bench-"));
        drop(sockmap);
        // The name is free again.
        drop(Sockmap::new().expect("once more"));
    }
}
