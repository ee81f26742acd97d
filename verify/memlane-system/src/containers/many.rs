//! Very many network namespaces on one bridge, as the containers of one host.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::blocks::has;
use crate::harness;

/// Namespaces, each with a cable to a bridge in one more. Gone when dropped.
#[derive(Debug)]
pub struct Many {
    stem: String,
    count: usize,
}

impl Many {
    /// `Err` says why there can be none here.
    ///
    /// # Errors
    /// Not root, no `ip`, or no namespaces here.
    pub fn new(count: usize) -> Result<Many, String> {
        if !harness::is_root() {
            return Err("not root: no network namespaces".into());
        }
        if !has("ip") {
            return Err("no ip: apt-get install iproute2".into());
        }
        let many = Many {
            stem: format!("mlm{}", std::process::id()),
            count,
        };
        let all = || 0..count;
        many.each(all(), |n| format!("netns add {}", many.namespace(n)))?;
        batch(&[], &format!("netns add {}\n", many.bridge()))?;
        many.each(all(), |n| {
            let (here, there) = (many.bridge(), many.namespace(n));
            format!("link add c{n} netns {here} type veth peer name e0 netns {there}")
        })?;
        let ends =
            all().map(|n| format!("link set c{n} addrgenmode none\nlink set c{n} master br0 up\n"));
        let bridge = format!(
            "link add br0 type bridge\nlink set br0 up\n{}",
            ends.collect::<String>()
        );
        batch(&["-n", &many.bridge()], &bridge)?;
        for n in all() {
            let address = many.address(n);
            // No IPv6: what each says about its own address, a bridge carries to all others.
            let own = format!(
                "addr add {address}/16 dev e0\nlink set e0 addrgenmode none\nlink set e0 up\nlink set lo up\n"
            );
            batch(&["-n", &many.namespace(n)], &own)?;
        }
        Ok(many)
    }

    fn bridge(&self) -> String {
        format!("{}br", self.stem)
    }

    /// The name of the n-th, from 0.
    pub fn namespace(&self, n: usize) -> String {
        format!("{}n{n}", self.stem)
    }

    /// Its address, from a block for tests between networks (RFC 2544).
    pub fn address(&self, n: usize) -> String {
        format!("198.18.{}.{}", n / 250, n % 250 + 1)
    }

    /// A command of `ip` for each.
    fn each(
        &self,
        which: std::ops::Range<usize>,
        command: impl Fn(usize) -> String,
    ) -> Result<(), String> {
        let lines = which.map(|n| command(n) + "\n");
        batch(&[], &lines.collect::<String>())
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        let _ = batch(&[], &format!("netns del {}\n", self.bridge()));
        let _ = self.each(0..self.count, |n| {
            format!("netns del {}", self.namespace(n))
        });
    }
}

/// Runs commands of `ip`, one a line.
fn batch(options: &[&str], lines: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(options).args(["-force", "-batch", "-"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut input = child.stdin.take().expect("piped");
    let written = input.write_all(lines.as_bytes());
    drop(input);
    let said = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    match said.status.success() && written.is_ok() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&said.stderr).into_owned()),
    }
}
