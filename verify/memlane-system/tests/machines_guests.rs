//! Programs in guests that share an ivshmem device, with each other and with programs of the host: the lane opens and carries
//! their bytes, also after a guest was paused, or lost its power and was booted again, or while somebody scribbles in the device.
//!
//! `./dev test-kernels` runs all stories. Those with the host need root, for a TAP device.
#![cfg(target_arch = "x86_64")]

mod guests;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use guests::ends::{Side, flood_arrives, flood_begins, flood_while_stopped, opens};
use guests::{
    Host, LARGE, Machine, Neighbours, PAUSE, SMALL, all_extents_are_free, connected, extents_in_use,
};

/// How long a guest is stopped while another one waits: several times as long as it takes to be called silent.
const LONG_PAUSE: Duration = Duration::from_secs(5);

/// The guest's second program has a limit for its memory. There the library has the kernel populate a ring's pages, which no kernel
/// does for the memory of a device.
#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_guest_and_its_host_have_the_lane_whoever_connects() {
    let Some(host) = Host::new("guest-and-host", LARGE) else {
        return;
    };
    let mut machine = host.boot();
    let mut server = host.listens(&mut machine);
    opens([&mut server, &mut machine]);
    drop(server);
    assert_eq!(machine.shell("limits_memory"), "");
    let mut client = host.connects(&mut machine);
    opens([&mut client, &mut machine]);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_guest_that_is_paused_in_the_middle_of_a_stream_goes_on_with_every_byte() {
    let Some(host) = Host::new("guest-paused", LARGE) else {
        return;
    };
    let mut machine = host.boot();
    let mut server = host.listens(&mut machine);
    opens([&mut server, &mut machine]);
    let pid = machine.running.pid();
    for _ in 0..2 {
        flood_while_stopped(&mut [&mut server, &mut machine], pid, PAUSE);
    }
    opens([&mut server, &mut machine]);
}

/// Both ends begin to send without end, and the second one's machine loses its power.
fn loses_its_power(survivor: &mut dyn Side, lost: &mut Machine) {
    survivor.tell("both 1 1000000000 1000000000");
    lost.tell("both 2 1000000000 1000000000");
    std::thread::sleep(Duration::from_millis(500));
    lost.running.kill();
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_guest_that_loses_its_power_is_for_its_host_what_tcp_would_show_and_its_memory_is_free_when_it_is_back()
 {
    let Some(host) = Host::new("guest-killed", SMALL) else {
        return;
    };
    let mut machine = host.boot();
    for _ in 0..2 {
        let mut survivor = host.listens(&mut machine);
        opens([&mut survivor, &mut machine]);
        loses_its_power(&mut survivor, &mut machine);
        std::thread::sleep(PAUSE);
        assert!(survivor.end.runs(), "TCP would not give up so soon");
        assert!(extents_in_use(&host.stage.region) > 0, "it may be paused");

        machine = host.boot();
        let ended = survivor.end.end();
        assert_eq!(ended.code(), Some(1), "it was not reset: {ended}");
        all_extents_are_free(&host.stage.region);
    }
    let mut server = host.listens(&mut machine);
    opens([&mut server, &mut machine]);
}

#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn two_guests_have_the_lane_and_have_it_again_when_one_has_lost_its_power() {
    let Some(two) = Neighbours::new("two-guests", SMALL) else {
        return;
    };
    let mut server = two.boot_server();
    let mut client = two.boot_client();
    connected([&mut server, &mut client]);
    opens([&mut server, &mut client]);

    loses_its_power(&mut server, &mut client);
    let mut client = two.boot_client();
    server.answer_that(|line| line.starts_with("end:") && line.contains("reset by peer"));
    connected([&mut server, &mut client]);
    opens([&mut server, &mut client]);
}

/// Each of the two is stopped once. The other one cannot know whether it will ever go on.
#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn a_guest_that_is_stopped_in_the_middle_of_a_stream_to_another_goes_on_with_every_byte() {
    let Some(two) = Neighbours::new("guests-paused", LARGE) else {
        return;
    };
    let mut server = two.boot_server();
    let mut client = two.boot_client();
    for is_server in [false, true] {
        connected([&mut server, &mut client]);
        opens([&mut server, &mut client]);
        let pid = [client.running.pid(), server.running.pid()][usize::from(is_server)];
        let mut ends: [&mut dyn Side; 2] = [&mut server, &mut client];
        if is_server {
            ends.reverse();
        }
        flood_while_stopped(&mut ends, pid, LONG_PAUSE);
        opens(ends);
    }
}

/// Whoever has the region may change what two programs send each other through it, and end their connection. That is all.
#[test]
#[ignore = "boots guests: ./dev test-kernels"]
fn guests_of_a_region_in_which_somebody_scribbles_lose_no_more_than_lanes_and_connections() {
    let Some(two) = Neighbours::new("scribbled", SMALL) else {
        return;
    };
    let mut server = two.boot_server();
    let mut client = two.boot_client();
    connected([&mut server, &mut client]);
    opens([&mut server, &mut client]);
    let at = format!("{}:7000", server.address);
    server.shell(&format!("httpd -p {at} -h /bin"));
    let whole = server.shell("sha256sum </bin/memlane");
    let fetch = format!("wget -q -O - http://{at}/memlane | sha256sum");
    let fetched = |client: &mut Machine| client.shell(&fetch);
    assert_eq!(fetched(&mut client), whole);

    flood_begins(&mut [&mut server, &mut client], 1 << 30);
    let scribbler = Scribbler::start(&two.stage.region);
    for _ in 0..3 {
        // Programs that are not under memlane, …
        let got = fetched(&mut client);
        assert!(got.ends_with(&whole), "{got}");
        // … those that had the lane, and then new ones, about which the agents are asked.
        for machine in [&mut server, &mut client] {
            let status = machine.ends_end();
            assert!(
                HARMLESS.contains(&status),
                "{status}: {}",
                machine.describe()
            );
        }
        connected([&mut server, &mut client]);
        flood_begins(&mut [&mut server, &mut client], 1 << 20);
    }
    drop(scribbler);
    for machine in [&mut server, &mut client] {
        let runs = machine.shell("grep -q '^State:.[DRS]' /proc/$agent/status && echo it runs");
        assert!(
            runs.lines().any(|line| line == "it runs"),
            "{}",
            machine.describe()
        );
    }
    connected([&mut server, &mut client]);
    let mut ends: [&mut dyn Side; 2] = [&mut server, &mut client];
    flood_begins(&mut ends, 1 << 20);
    flood_arrives(&mut ends);
}

/// How an end may end whose connection is lost: well, by its own word, or because it waited and was killed by the test.
const HARMLESS: [i32; 3] = [0, 1, 128 + 9];

/// A process that writes nonsense into all of a region. Killed when dropped.
struct Scribbler(Child);

impl Scribbler {
    fn start(region: &Path) -> Scribbler {
        let program = Path::new(env!("OUT_DIR")).join("scribble");
        let mut scribble = Command::new(program);
        scribble.arg(region).stdout(Stdio::piped());
        let mut child = scribble.spawn().expect("it was compiled");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("piped");
        let _ = BufReader::new(out).read_line(&mut line);
        assert_eq!(line, "scribbles\n");
        Scribbler(child)
    }
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
