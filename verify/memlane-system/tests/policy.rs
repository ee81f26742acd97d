//! Which settings of the two sides open a lane. Otherwise both sides stay on TCP and say why. The bytes arrive either
//! way.

use std::io::Write as _;

use memlane_system::harness::{is_root, plain_only};
use memlane_system::pair::{DEFAULT, Pair, SOMEBODY, Settings, flags};
use memlane_system::real::Reason;

/// Own and the peer's reason of one end.
type Reasons = Option<[Reason; 2]>;

const fn says(own: Reason, peer: Reason) -> Reasons {
    Some([own, peer])
}

/// Another user than ours; only root can take that identity.
const fn as_somebody<'a>(flags: &'a [&'a str]) -> Settings<'a> {
    Settings {
        flags,
        uid: Some(SOMEBODY),
        ..DEFAULT
    }
}

fn may_be_another_user(test: &str) -> bool {
    if !is_root() {
        // Not eprintln!: the test runner hides what that prints.
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: needs root");
    }
    is_root() && !plain_only()
}

/// The lane opens, and a lot goes through it in both directions at once.
fn opens(server: &Settings<'_>, client: &Settings<'_>) -> Pair {
    let mut pair = Pair::start(server, client);
    pair.open();
    // On a busy machine a whole flood may find the other end asleep.
    for _ in 0..FLOODS {
        pair.flood(8 << 20);
        if used_both_ways(&pair) {
            return pair;
        }
    }
    panic!("{}", pair.describe());
}

/// Floods, one of which must go by the ring.
const FLOODS: u32 = 20;

fn used_both_ways(pair: &Pair) -> bool {
    [&pair.server, &pair.client].into_iter().all(|end| {
        let conn = end.conn().expect("a page");
        conn.on_lane() && conn.bytes[0] > 0 && conn.bytes[1] > 0
    })
}

/// Both stay on TCP, for these reasons of server and client.
fn stays_on_tcp(
    server: &Settings<'_>,
    client: &Settings<'_>,
    server_says: Reasons,
    client_says: Reasons,
) {
    let mut pair = Pair::start(server, client);
    let [client, server] = pair.stay_on_tcp();
    let name = |reasons: Reasons| reasons.map(|both| both.map(Reason::name));
    assert_eq!(
        (name(server), name(client)),
        (name(server_says), name(client_says))
    );
}

const SAME_UID: &[&str] = &["--peer", "same-uid"];

#[test]
fn by_default_another_user_gets_a_lane() {
    if may_be_another_user("by_default_another_user_gets_a_lane") {
        opens(&DEFAULT, &as_somebody(&[]));
        opens(&as_somebody(&[]), &DEFAULT);
    }
}

#[test]
fn a_side_that_wants_its_own_user_only_gets_a_lane_to_it() {
    if plain_only() {
        return;
    }
    opens(&flags(SAME_UID), &flags(SAME_UID));
    if is_root() {
        opens(&as_somebody(SAME_UID), &as_somebody(SAME_UID));
    }
}

#[test]
fn a_side_that_wants_its_own_user_only_stays_on_tcp_with_another() {
    if !may_be_another_user("a_side_that_wants_its_own_user_only_stays_on_tcp_with_another") {
        return;
    }
    let refused = says(Reason::PEER_REFUSED, Reason::NONE);
    let told = says(Reason::PEER_DECLINED, Reason::PEER_REFUSED);
    // The server refuses the proposal …
    stays_on_tcp(&flags(SAME_UID), &as_somebody(&[]), refused, told);
    stays_on_tcp(&as_somebody(SAME_UID), &flags(SAME_UID), refused, told);
    // … the client its answer.
    stays_on_tcp(&DEFAULT, &as_somebody(SAME_UID), told, refused);
}

#[test]
fn sides_with_an_enterprise_id_in_common_get_a_lane() {
    if plain_only() {
        return;
    }
    opens(&flags(&["--eid", "BLUE"]), &flags(&["--eid", "BLUE"]));
    opens(
        &flags(&["--eid", "RED", "--eid", "BLUE"]),
        &flags(&["--eid", "blue", "--eid", "GREEN"]),
    );
}

#[test]
fn sides_without_an_enterprise_id_in_common_stay_on_tcp() {
    if plain_only() {
        return;
    }
    let refused = says(Reason::NO_EID, Reason::NONE);
    let told = says(Reason::PEER_DECLINED, Reason::NO_EID);
    let (red, blue) = (&["--eid", "RED"][..], &["--eid", "BLUE"][..]);
    stays_on_tcp(&flags(red), &flags(blue), refused, told);
    stays_on_tcp(&flags(red), &DEFAULT, refused, told);
    stays_on_tcp(&DEFAULT, &flags(blue), refused, told);
}

#[test]
fn a_side_that_is_switched_off_is_for_the_other_one_without_memlane() {
    if plain_only() {
        return;
    }
    let off = Settings {
        env: &[("MEMLANE_DISABLE", "1")],
        ..DEFAULT
    };
    let outside = says(Reason::PEER_NO_MEMLANE, Reason::NONE);
    stays_on_tcp(&DEFAULT, &off, outside, None);
    stays_on_tcp(&off, &DEFAULT, None, outside);
}

#[test]
fn a_side_that_does_not_upgrade_says_so_and_the_other_finds_nobody() {
    if plain_only() {
        return;
    }
    let off = flags(&["--upgrade", "off"]);
    let (own, outside) = (Reason::CNF_ERR, Reason::PEER_NO_MEMLANE);
    let says = |reason| says(reason, Reason::NONE);
    stays_on_tcp(&DEFAULT, &off, says(outside), says(own));
    stays_on_tcp(&off, &DEFAULT, says(own), says(outside));
}

#[test]
fn rings_of_different_sizes_fill_in_both_directions() {
    if plain_only() {
        return;
    }
    for (server, client) in [("16K", "4M"), ("1M", "64K")] {
        let mut pair = opens(&flags(&["--ring", server]), &flags(&["--ring", client]));
        for bytes in [1 << 14, (1 << 14) + 1, 12_345_678] {
            pair.flood(bytes);
        }
    }
}

/// `Mode` of the one connection of a process, as `ss` shows it.
fn mode_shown(pair: &Pair, pid: u32) -> String {
    let mut command = pair.memlane();
    command.args(["ss", "--pid", &pid.to_string()]);
    let output = command.output().expect("memlane ss");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace();
    let shown = words.find(|word| word.starts_with("MEMLANE"));
    shown.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn either_side_can_ask_for_mode_copy_and_gets_it_in_both_directions() {
    if plain_only() {
        return;
    }
    let copy = &["--mode", "copy"][..];
    for (server, client, shown) in [
        (&[][..], &[][..], "MEMLANE"),
        (copy, &["--mode", "nocopy"][..], "MEMLANE:copy"),
        (&[][..], copy, "MEMLANE:copy"),
        (copy, copy, "MEMLANE:copy"),
    ] {
        let pair = opens(&flags(server), &flags(client));
        for end in [&pair.server, &pair.client] {
            assert_eq!(mode_shown(&pair, end.pid()), shown, "{server:?} {client:?}");
        }
    }
}

#[test]
fn in_mode_copy_rings_and_own_buffers_of_different_sizes_fill_in_both_directions() {
    if plain_only() {
        return;
    }
    for (server, client) in [("16K", "1M"), ("1M", "64K")] {
        let flags_of = |ring| ["--mode", "copy", "--ring", ring];
        let mut pair = opens(&flags(&flags_of(server)), &flags(&flags_of(client)));
        for bytes in [1 << 14, (1 << 14) + 1, 12_345_678] {
            pair.flood(bytes);
        }
    }
}
