//! A guest and the host alike: a shell that does what it is told.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use memlane_guest::{Guest, Heard, Running};

use crate::runner::proc::{Job, Scratch, Service, confined};
use crate::runner::programs::Programs;
use crate::runner::sys;

/// An emulated machine boots in a few seconds, on a busy one in a minute.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// What an order may take beyond its measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// How often Ctrl-C is looked for.
const GLANCE: Duration = Duration::from_millis(200);

/// What a guest does first: a network card for each network, an agent, and then what is typed. An order's answer ends with its
/// number.
const SCRIPT: &str = r#"
export PATH=/bin HOME=/ MEMLANE_PRELOAD=/bin/libmemlane_preload.so
mkdir -p /run/memlane /etc /var/log /dev/shm /domain
mount -t tmpfs none /dev/shm
echo root:x:0:0::/:/bin/sh >/etc/passwd
echo nobody:x:65534:65534::/:/bin/sh >>/etc/passwd
echo root:x:0: >/etc/group
echo nogroup:x:65534: >>/etc/group
dmesg -n 1
stty -echo
ip link set lo up
ADDRESSES
memlane agent --device=ivshmem:auto /domain >/tmp/agent.log 2>&1 &
agent=$!
until grep -q serves /tmp/agent.log; do
    kill -0 $agent || { cat /tmp/agent.log; exit 1; }
    sleep 0.1
done
echo over 0
while read -r number order; do
    eval "$order" || true
    echo over $number
done
"#;

/// A guest, or the host.
pub(super) trait Computer {
    /// Has its shell do this; what it prints. `$domain` is the agent's directory.
    ///
    /// # Errors
    /// It took too long, or is no more.
    fn shell(&mut self, order: &str, seconds: f64) -> anyhow::Result<String>;
}

/// A guest with an agent.
pub(super) struct Machine {
    running: Running,
    orders: u32,
}

impl Machine {
    /// Boots it, with an address for each of its network cards.
    pub(super) fn boot(guest: &Guest, addresses: &[&str]) -> anyhow::Result<Machine> {
        let cards = addresses.iter().enumerate().map(|(n, address)| {
            format!("ip link set eth{n} up\nip addr add {address}/24 dev eth{n}\n")
        });
        let script = SCRIPT.replace("ADDRESSES", &cards.collect::<String>());
        let running = guest.try_start(&script).map_err(|why| anyhow!(why))?;
        let mut machine = Machine { running, orders: 0 };
        machine.until_over(BOOT_LIMIT)?;
        Ok(machine)
    }

    fn until_over(&mut self, limit: Duration) -> anyhow::Result<String> {
        let (until, over) = (Instant::now() + limit, format!("over {}", self.orders));
        let mut said = String::new();
        loop {
            match self.running.line(GLANCE) {
                Heard::Line(line) if line == over => return Ok(said),
                Heard::Line(line) => said += &(line + "\n"),
                Heard::Nothing if sys::interrupted() => bail!("interrupted"),
                Heard::Nothing if Instant::now() < until => {}
                Heard::Nothing => bail!("a guest took too long; it said: {said}"),
                Heard::End => bail!("a guest has ended; it said: {said}"),
            }
        }
    }
}

impl Computer for Machine {
    fn shell(&mut self, order: &str, seconds: f64) -> anyhow::Result<String> {
        self.orders += 1;
        let order = format!("domain=/domain; {order}");
        self.running.types(&format!("{} {order}", self.orders));
        self.until_over(LIMIT + Duration::from_secs_f64(seconds))
    }
}

/// The host, with an agent.
pub(super) struct Local<'a> {
    programs: &'a Programs,
    scratch: &'a Scratch,
    domain: String,
    _agent: Service,
}

impl<'a> Local<'a> {
    /// Starts an agent for a region.
    pub(super) fn new(
        programs: &'a Programs,
        scratch: &'a Scratch,
        region: &str,
    ) -> anyhow::Result<Local<'a>> {
        let domain = scratch.name("domain");
        let mut agent = confined(&programs.memlane);
        agent.arg("agent").arg(&domain).env_remove("LD_PRELOAD");
        agent.arg(format!("--device=ivshmem:{region}"));
        Ok(Local {
            programs,
            scratch,
            domain: domain.display().to_string(),
            _agent: Service::start_saying(agent, scratch, "serves ")?,
        })
    }
}

impl Computer for Local<'_> {
    fn shell(&mut self, order: &str, seconds: f64) -> anyhow::Result<String> {
        let own = self.programs.memlane.parent().context("a folder")?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", order])
            .env("PATH", format!("{}:{path}", own.display()))
            .env("domain", &self.domain)
            .env_remove("LD_PRELOAD");
        sys::confine(&mut shell, &[]);
        let limit = LIMIT + Duration::from_secs_f64(seconds);
        Job::start(shell, limit, self.scratch)?.finish()
    }
}
