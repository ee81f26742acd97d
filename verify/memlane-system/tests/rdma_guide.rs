//! Every command of `docs/guides/rdma.md`, in its order, in two guests.
//!
//! `./dev test-kernels` runs it.
#![cfg(target_arch = "x86_64")]

mod rdma;

use std::path::Path;
use std::time::{Duration, Instant};

use memlane_fixtures::guest::{Guest, Heard, Running};
use memlane_system::harness::TempDir;
use rdma::{MAINLINE_CLIENT, MAINLINE_SERVER, guest, kernel};

/// One command may take this long.
const LIMIT: Duration = Duration::from_secs(90);

/// A machine as its owner left it, and a shell that says how each line of the console went. Packages are there; of modules, those
/// that the guide loads are only files, or there since the start.
const SHELL: &str = r#"
export PATH=/opt:/bin
export XDG_RUNTIME_DIR=/run
mkdir -p /run /var /srv /mnt
ip link set lo up
ip link set eth0 up
ip addr add 192.0.2.$ME/24 dev eth0
rmmod rnbd_server rnbd_client 2>/dev/null || true
apt() {
    [ "$1" = install ]
}
modprobe() {
    for module in "$@"; do
        name=$(echo $module | tr - _)
        case $module in -*) continue ;; esac
        [ -e /sys/module/$name ] || insmod /modules/$name.ko || return
    done
}
number=0
echo "shell-is-up"
set +e
while read -r line; do
    [ "$line" != leave ] || break
    number=$((number + 1))
    eval "$line"
    echo "went-$number: $?"
done </dev/console
"#;

/// Programs of the guide that run until somebody ends them: the reader has another terminal.
const STAY: [&str; 3] = ["memlane serve ", "ibv_rc_pingpong ", "rping -s "];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Server,
    Client,
}

/// The guide's commands, and where each belongs.
fn commands(guide: &str) -> Vec<(Place, &str)> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in guide.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let Some((place, command)) = line.split_once("# ").filter(|_| is_code) else {
            assert!(!is_code, "a line of no machine: {line}");
            continue;
        };
        match place {
            "server" => found.push((Place::Server, command)),
            "client" => found.push((Place::Client, command)),
            "both" => found.extend([(Place::Server, command), (Place::Client, command)]),
            other => panic!("no machine is called {other}: {line}"),
        }
    }
    found
}

/// A guest, and the number of the line that it was told last.
struct Machine {
    running: Running,
    number: u32,
}

impl Machine {
    fn start(guest: &Guest, me: u8) -> Machine {
        let mut running = guest.start(&format!("ME={me}\n{SHELL}"));
        assert!(running.hears("shell-is-up"), "{}", running.console());
        Machine { running, number: 0 }
    }

    /// How a command went, and what it said.
    fn does(&mut self, command: &str) -> (bool, String) {
        self.number += 1;
        self.running.types(command);
        let mark = format!("went-{}: ", self.number);
        let (until, mut said) = (Instant::now() + LIMIT, String::new());
        while Instant::now() < until {
            match self.running.line(Duration::from_secs(1)) {
                Heard::Line(line) => match line.split_once(&mark) {
                    Some((before, status)) => {
                        said += before;
                        return (status.trim() == "0", said);
                    }
                    None => said += &format!("{line}\n"),
                },
                Heard::Nothing => {}
                Heard::End => break,
            }
        }
        panic!("{command}: no end of it\n{}", self.running.console());
    }

    /// What is on its way to be right is looked at again.
    fn shows(&mut self, command: &str, is_right: fn(&str) -> bool) {
        for _ in 0..10 {
            let (well, said) = self.does(command);
            println!("{command}\n{said}");
            if well && is_right(&said) {
                return;
            }
            self.must("sleep 1");
        }
        panic!(
            "{command}: not as the guide says\n{}",
            self.running.console()
        );
    }

    fn must(&mut self, command: &str) {
        let (well, said) = self.does(command);
        println!("{command}\n{said}");
        assert!(well, "{command}\n{said}");
    }
}

/// What the guide says about a command in words, and not in code.
fn first(place: Place, command: &str) -> Option<&'static str> {
    let stops = place == Place::Server && command.contains("rnbd-server");
    stops.then_some("killall memlane; sleep 1")
}

fn joined(guest: Guest, folder: &Path, me: u8) -> Guest {
    let server = if me == 1 { "on" } else { "off" };
    let netdev = format!(
        "stream,id=link,server={server},addr.type=unix,addr.path={}",
        folder.join("link").display()
    );
    let device = format!("virtio-net-pci,netdev=link,mac=52:54:00:00:01:0{me},romfile=");
    guest.arguments(&["-netdev", &netdev, "-device", &device])
}

/// The beginning of a command that shows something, and whether it is what the guide says.
type Shown = (&'static str, fn(&str) -> bool);

const SHOWS: [Shown; 3] = [
    ("ibv_devices", |said| said.contains("rxe0")),
    ("memlane session show two", |said| {
        let is_up = |line: &&str| line.split_whitespace().nth(1) == Some("connected");
        said.lines().filter(is_up).count() == 2
    }),
    // 33 of 40 are in use.
    ("grep HugePages_Free", |said| said.ends_with(" 7\n")),
];

/// What the guide's table says that memlane says.
const ERRORS: [(&str, &str); 2] = [
    (
        "memlane map --wait 3s rdma://192.0.2.1:4321 disk --as fuse:/run/no",
        "Connection refused",
    ),
    (
        "memlane map --wait 3s rdma://127.0.0.1 disk --as fuse:/run/no",
        "No such device",
    ),
];

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn each_command_of_the_guide_does_what_it_says() {
    let test = "rdma-guide";
    let mainline = [MAINLINE_SERVER, &MAINLINE_CLIENT[1..]].concat();
    let Some(kernel) = kernel(test, &mainline) else {
        return;
    };
    let folder = TempDir::new(test);
    let modules = [&mainline[..], &["virtio_pci", "virtio_net"]].concat();
    let programs = ["ibv_devices", "mkfs.ext4", "fsck.ext4"];
    let machine = |me| {
        let mut guest = guest(&kernel, &modules, folder.path()).expect("programs of this machine");
        for name in programs {
            guest = rdma::with_program(guest, name).expect("programs of this machine");
        }
        Machine::start(&joined(guest, folder.path(), me), me)
    };
    let (mut server, mut client) = (machine(1), machine(2));
    let guide = include_str!("../../../docs/guides/rdma.md");
    let commands = commands(guide);
    assert!(commands.len() > 30, "{commands:?}");
    for (place, command) in commands {
        let machine = match place {
            Place::Server => &mut server,
            Place::Client => &mut client,
        };
        if let Some(first) = first(place, command) {
            machine.must(first);
        }
        let shown = SHOWS.iter().find(|(begin, _)| command.starts_with(begin));
        if let Some((_, is_right)) = shown {
            machine.shows(command, *is_right);
            continue;
        }
        let stays = STAY.iter().any(|begin| command.starts_with(begin));
        match stays && place == Place::Server {
            true => machine.must(&format!("{command} & sleep 3")),
            false => machine.must(command),
        }
    }
    for (command, words) in ERRORS {
        let (well, said) = client.does(command);
        println!("{command}\n{said}");
        assert!(!well && said.contains(words), "{command}\n{said}");
        assert!(guide.contains(&format!("| `{words}` |")), "{words}");
    }
    for machine in [&mut server, &mut client] {
        machine.running.types("leave");
        let outcome = machine.running.finish();
        assert!(outcome.ok, "{}", outcome.console);
    }
}
