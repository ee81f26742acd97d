//! Programs that share a network namespace and nothing else, as the containers of a pod do: their own pids, users, mounts,
//! restrictions. The lane opens; where something is missing that it needs, both stay on TCP and say why.
//!
//! Needs root to make the namespaces.

use memlane_system::blocks::skip;
use memlane_system::crowd::{Program, serve_under};
use memlane_system::harness::{Mode, is_root, plain_only};
use memlane_system::pair::{DEFAULT, Pair, Settings, flags};
use memlane_system::real::Reason;

/// May namespaces be made here?
fn allowed(test: &str) -> bool {
    if plain_only() {
        return false;
    }
    let probe = std::process::Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--mount-proc",
            "--user",
            "--map-root-user",
            "true",
        ])
        .status();
    let allowed = is_root() && probe.is_ok_and(|status| status.success());
    if !allowed {
        skip(test, "not root, or no namespaces here");
    }
    allowed
}

/// A process in a pid namespace of its own, with its own /proc.
const OWN_PIDS: &[&str] = &["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

fn under<'a>(under: &'a [&'a str]) -> Settings<'a> {
    Settings { under, ..DEFAULT }
}

/// The lane opens, and carries a lot in both directions at once.
fn opens(server: &[&str], client: &[&str]) {
    let mut pair = Pair::start(&under(server), &under(client));
    pair.open_and_carry();
}

#[test]
fn with_pids_and_mounts_of_their_own_the_lane_opens() {
    if !allowed("own_pids") {
        return;
    }
    opens(OWN_PIDS, &[]);
    opens(&[], OWN_PIDS);
    opens(OWN_PIDS, OWN_PIDS);
}

#[test]
fn with_pids_of_its_own_and_the_hosts_proc_the_lane_opens() {
    if allowed("hosts_proc") {
        opens(&["unshare", "--pid", "--fork", "--kill-child"], OWN_PIDS);
    }
}

#[test]
fn with_users_of_their_own_the_lane_opens() {
    if !allowed("own_users") {
        return;
    }
    let own = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    opens(&own, &[]);
    opens(&own, &own);
}

#[test]
fn as_two_users_without_a_number_here_the_lane_opens() {
    if !allowed("unmapped") {
        return;
    }
    opens(
        &[
            "setpriv",
            "--reuid",
            "1000",
            "--clear-groups",
            "unshare",
            "--user",
        ],
        &[],
    );
}

#[test]
fn without_capabilities_and_new_privileges_the_lane_opens() {
    if !allowed("no_capabilities") {
        return;
    }
    let restricted = [
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
        "--reuid",
        "1001",
        "--regid",
        "1001",
        "--clear-groups",
    ];
    let other = [
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
        "--reuid",
        "1002",
        "--regid",
        "1002",
        "--clear-groups",
    ];
    opens(&restricted, &other);
}

#[test]
fn with_another_boot_id_as_in_system_containers_the_lane_opens() {
    if !allowed("boot_id") {
        return;
    }
    // As systemd-nspawn and LXC do.
    let script = "echo 11111111-2222-3333-4444-555555555555 > /tmp/boot_id.$$ && \
                  mount --bind /tmp/boot_id.$$ /proc/sys/kernel/random/boot_id && rm /tmp/boot_id.$$ && exec \"$@\"";
    opens(&["unshare", "--mount", "sh", "-c", script, "sh"], &[]);
}

#[test]
fn without_proc_both_stay_on_tcp_and_the_one_that_lacks_it_says_so() {
    if !allowed("no_proc") {
        return;
    }
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let without = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let mut pair = Pair::start(&under(&[]), &under(&without));
    let [client, server] = pair
        .stay_on_tcp()
        .map(|both| both.map(|[own, _]| own.name()));
    assert_eq!(client, Some(Reason::NO_DEVICE.name()));
    assert_eq!(server, Some(Reason::PEER_NO_MEMLANE.name()));
    let mut pair = Pair::start(&under(&without), &under(&[]));
    let [client, server] = pair
        .stay_on_tcp()
        .map(|both| both.map(|[own, _]| own.name()));
    assert_eq!(server, Some(Reason::NO_DEVICE.name()));
    assert_eq!(client, Some(Reason::PEER_DECLINED.name()));
}

#[test]
fn strangers_without_a_number_are_not_the_same_user() {
    if !allowed("overflow_uid") {
        return;
    }
    // Both appear as the overflow uid to each other; they are two users.
    let server = [
        "setpriv",
        "--reuid",
        "1000",
        "--clear-groups",
        "unshare",
        "--user",
    ];
    let client = [
        "setpriv",
        "--reuid",
        "2000",
        "--clear-groups",
        "unshare",
        "--user",
    ];
    let same = flags(&["--peer", "same-uid"]);
    let mut pair = Pair::start(
        &Settings {
            under: &server,
            ..same
        },
        &under(&client),
    );
    let [client, server] = pair
        .stay_on_tcp()
        .map(|both| both.map(|[own, _]| own.name()));
    assert_eq!(server, Some(Reason::PEER_REFUSED.name()));
    assert_eq!(client, Some(Reason::PEER_DECLINED.name()));
}

#[test]
fn peers_whose_pid_is_not_visible_are_forgotten_when_they_are_gone() {
    if !allowed("invisible_pids") {
        return;
    }
    const LIMIT: &[&str] = &["prlimit", "--nofile=128"];
    let (server, port) = serve_under(&[LIMIT, OWN_PIDS].concat(), Mode::Eager);
    let before = server.holds();
    for _ in 0..80 {
        let mut client = Program::start_under(OWN_PIDS, Mode::Eager, &["call", &port]);
        client.does("open 1");
        client.does("talk epoll 0 1 300 4");
        client.end();
    }
    // Groups are looked through when the next peer comes, a second after they fell silent at the earliest.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let mut last = Program::start_under(OWN_PIDS, Mode::Eager, &["call", &port]);
    last.does("open 1");
    last.does("talk epoll 0 1 300 4");
    last.end();
    let held = server.holds();
    assert!(held.fds <= before.fds + 12, "{before:?} {held:?}");
    assert!(held.maps <= before.maps + 40, "{before:?} {held:?}");
    server.end();
}
