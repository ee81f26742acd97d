//! `memlane net`, verb by verb: what it does, and how it answers contradictory arguments. It needs no privileges: the
//! command itself makes and checks the frames.

use std::path::{Path, PathBuf};

use memlane_system::blocks::machines::{Machines, Side};
use memlane_system::blocks::memlane;
use memlane_system::harness::{self, Running};
use memlane_system::verbs::{LIMIT, MODES, Place, ended, json, number, run, says, shows, start};
use serde_json::Value;

// ---- what the verbs do ------------------------------------------------------

#[test]
fn frames_of_a_generator_come_to_a_sink_in_each_mode_and_both_say_so() {
    for mode in MODES {
        for (from, to) in [("front", "back"), ("back", "front")] {
            let place = Place::new("net-gen");
            let (from, to) = (place.at(from), place.at(to));
            let sink = start(&["sink", &to, "--count", "3000", "--json"]);
            // To either side, the mode is a setting.
            let sent = run(&[
                "gen", &from, "--size", "30-9000", "--count", "3000", "--mode", mode, "--json",
            ]);
            assert!(sent.is_ok(), "{}", sent.report());
            let came = sink.finish(LIMIT);
            assert!(came.is_ok(), "{}", came.report());
            let (sent, came) = (json(&sent.stdout), json(&came.stdout));
            assert_eq!(sent["schema"], "memlane.net-gen/1");
            assert_eq!(sent["ends"][0]["received"], 3000, "{sent:#}");
            assert_eq!(
                (&came["schema"], &came["ok"]),
                (&"memlane.net-sink/1".into(), &true.into())
            );
            assert_eq!(came["ends"][1]["verdict"]["good"], 3000, "{came:#}");
            assert_eq!(
                (&sent["attaches"], &came["attaches"]),
                (&1.into(), &1.into())
            );
            let back = if from.starts_with("back") {
                &sent["ends"][1]
            } else {
                &came["ends"][0]
            };
            assert_eq!(
                number(&back["queues"][0]["copied"]) > 0,
                mode == "copy",
                "{back:#}"
            );
        }
    }
}

#[test]
fn a_back_and_a_front_join_ends_of_one_s_choice_and_end_with_the_link_if_told_so() {
    let place = Place::new("net-sides");
    let (socket, file) = (place.socket(), place.path("frames.pcap"));
    let capture = format!("pcap:{}", file.display());
    let mut back = start(&[
        "back", &socket, &capture, "--once", "--mode", "map", "--json",
    ]);
    says(&mut back, &format!("waiting for a front at {socket}"));
    let front = run(&["front", &socket, "gen:count=100&size=100", "--ring", "32"]);
    assert!(front.is_ok(), "{}", front.report());
    assert!(front.stderr.contains("mode map"), "{}", front.report());
    assert!(
        front.stdout.contains("100 frames (10000 bytes) came"),
        "{}",
        front.report()
    );
    let back = back.finish(LIMIT);
    assert!(back.is_ok(), "{}", back.report());
    let said = json(&back.stdout);
    assert_eq!(said["schema"], "memlane.net-link/1");
    assert_eq!(
        (
            number(&said["ends"][0]["received"]),
            number(&said["ends"][1]["sent"])
        ),
        (100, 100)
    );
    assert_eq!(file.metadata().expect("a capture").len(), 24 + 100 * 116);
    assert!(
        !Path::new(&socket).exists(),
        "the socket goes with its back"
    );
}

/// A capture of ten numbered frames of 60 bytes.
fn ten_frames(place: &Place) -> (PathBuf, Vec<u8>) {
    let file = place.path("ten.pcap");
    let said = run(&[
        "gen",
        &format!("pcap:{}", file.display()),
        "--size",
        "60",
        "--count",
        "10",
    ]);
    assert!(said.is_ok(), "{}", said.report());
    let bytes = std::fs::read(&file).expect("a capture");
    assert_eq!(bytes.len(), 24 + 10 * 76);
    (file, bytes)
}

#[test]
fn a_sink_s_exit_code_says_whether_all_came_once_and_unchanged() {
    let place = Place::new("net-verdict");
    let (file, whole) = ten_frames(&place);
    let replay = format!("replay:{}", file.display());
    let at = |record: usize| 24 + record * 76;
    let mut missing = whole.clone();
    missing.drain(at(3)..at(4));
    let mut twice = whole.clone();
    twice.extend(&whole[at(9)..]);
    let mut changed = whole.clone();
    changed[at(6) + 70] ^= 1;
    let mut strange = whole.clone();
    strange.extend(&whole[at(9)..]);
    // Its type.
    strange[at(10) + 16 + 12] = 8;
    let cases: [(&str, &[u8], &[&str], i32); 6] = [
        ("good", &whole, &["--count", "10"], 0),
        ("good", &whole, &["--count", "11"], 6),
        ("missing", &missing, &[], 6),
        ("twice", &twice, &[], 6),
        ("changed", &changed, &[], 6),
        // Somebody else's frames.
        ("strange", &strange, &[], 0),
    ];
    for (kind, bytes, more, code) in cases {
        std::fs::write(&file, bytes).expect("written");
        let mut args = vec!["sink", &replay, "--json"];
        args.extend(more);
        let said = run(&args);
        assert_eq!(said.status.code(), Some(code), "{kind}: {}", said.report());
        let told = json(&said.stdout);
        assert_eq!(told["ok"], code == 0, "{told:#}");
        assert!(
            number(&told["ends"][1]["verdict"][kind]) > 0,
            "{kind}: {told:#}"
        );
    }
}

#[test]
fn a_replay_goes_round_until_it_is_time() {
    let place = Place::new("net-loop");
    let (file, _) = ten_frames(&place);
    let replay = format!("replay:{}?loop", file.display());
    let said = run(&["sink", &replay, "--seconds", "0.2", "--json"]);
    assert_eq!(said.status.code(), Some(6), "{}", said.report());
    let told = json(&said.stdout);
    let seen = &told["ends"][1]["verdict"];
    assert_eq!(
        (number(&seen["good"]), number(&seen["twice"]) > 0),
        (10, true),
        "{told:#}"
    );
    assert!(told["seconds"].as_f64() >= Some(0.2), "{told:#}");
}

#[test]
fn a_generator_stops_when_its_time_is_over_and_keeps_its_rate() {
    let said = run(&[
        "gen",
        "sink:",
        "--rate",
        "1000",
        "--seconds",
        "0.5",
        "--json",
    ]);
    assert!(said.is_ok(), "{}", said.report());
    let sent = number(&json(&said.stdout)["ends"][0]["received"]);
    assert!(sent > 0 && sent <= 501 + 32, "{sent}");
}

#[test]
fn a_generator_whose_link_goes_for_good_has_failed() {
    let place = Place::new("net-unsent");
    let mut taker = start(&["back", &place.socket(), "sink:"]);
    says(&mut taker, "waiting");
    let mut sending = start(&[
        "gen",
        &place.at("front"),
        "--rate",
        "1000",
        "--count",
        "1000000",
        "--once",
    ]);
    says(&mut sending, "linked");
    taker.signal("KILL");
    ended(&sending.finish(LIMIT), 1, "of 1000000 frames");
}

// ---- waiting ----------------------------------------------------------------

#[test]
fn who_waits_says_for_what_and_not_longer_than_told() {
    let place = Place::new("net-wait");
    let memif = format!("memif:{}", place.path("m").display());
    let server = format!("{memif}?role=server");
    for (end, whom) in [
        (place.at("front"), "a back at"),
        (place.at("back"), "a front at"),
        (memif, "a memif server at"),
        (server, "a memif client at"),
    ] {
        let said = run(&["sink", &end, "--wait", "300ms"]);
        ended(&said, 7, &format!("nobody came within 300ms: {whom}"));
        assert!(
            said.stderr.contains(&format!("waiting for {whom}")),
            "{}",
            said.report()
        );
        assert!(said.stdout.is_empty(), "{}", said.report());
    }
    let said = run(&["sink", &place.at("front"), "--wait", "100ms", "--json"]);
    assert!(said.stderr.contains("memlane.error/1"), "{}", said.report());
    // A socket of a dead process, and one of another kind.
    let file = place.path("s");
    drop(std::os::unix::net::UnixListener::bind(&file).expect("a socket"));
    ended(
        &run(&["sink", &place.at("front"), "--wait", "100ms"]),
        7,
        "no process listens on this socket",
    );
    std::fs::remove_file(&file).expect("it is there");
    let _other = std::os::unix::net::UnixListener::bind(&file).expect("a socket");
    ended(
        &run(&["sink", &place.at("front")]),
        1,
        "another kind of socket",
    );
}

#[test]
fn a_link_that_goes_is_awaited_again_and_its_counters_stay() {
    let place = Place::new("net-again");
    let name = place.named("back");
    let mut back = start(&["back", &place.socket(), "sink:", "--name", &name, "--json"]);
    let whom = format!("a front at {}", place.socket());
    // It waits for its own ends first.
    let waiting = shows(&name, "waiting for a front", |seen| {
        seen["state"] == "waiting" && seen["waiting_for"] == whom.as_str()
    });
    assert_eq!(
        (number(&waiting["attaches"]), &waiting["last_end"]),
        (0, &Value::Null)
    );
    for round in 1..=3 {
        let said = run(&["front", &place.socket(), "gen:count=500", "--wait", "30s"]);
        assert!(said.is_ok(), "{}", said.report());
        let seen = shows(&name, "waiting again", |seen| {
            seen["state"] == "waiting" && number(&seen["attaches"]) == round
        });
        assert_eq!(
            number(&seen["ends"][0]["received"]),
            500 * round,
            "{seen:#}"
        );
        assert_eq!(number(&seen["ends"][1]["sent"]), 500 * round, "{seen:#}");
        let why = seen["last_end"]["text"].as_str().unwrap_or_default();
        assert!(why.contains("closed") || why.contains("gone"), "{seen:#}");
        assert_eq!(seen["ends"][0]["peer"], Value::Null, "{seen:#}");
        let table = &seen["ends"][0]["queues"][0]["grants"]["tx"];
        assert_eq!(
            (number(&table["count"]), number(&table["hits"]) > 0),
            (0, true),
            "{seen:#}"
        );
    }
    says(&mut back, "waiting for another");
    back.signal("TERM");
    let said = back.finish(LIMIT);
    assert_eq!(json(&said.stdout)["attaches"], 3);
}

// ---- what does not go together ----------------------------------------------

#[test]
fn what_does_not_go_together_is_a_mistake_in_the_call_and_says_what_would() {
    let cases: [(&[&str], &str); 17] = [
        (
            &["link", "back:/x", "front:/x"],
            "both ends have the same socket",
        ),
        (
            &["back", "/x", "memif:/x?role=server"],
            "both ends have the same socket",
        ),
        (&["back", "back:/x", "sink:"], "memlane net back SOCKET END"),
        (
            &["link", "front:/x", "sink:", "--max-grants", "3"],
            "--max-grants needs an end back:",
        ),
        (
            &["link", "back:/x", "sink:", "--ring", "64"],
            "--ring needs an end front:",
        ),
        (
            &["sink", "memif:/x", "--ring", "64"],
            "memif:SOCKET?ring=SLOTS",
        ),
        (
            &["link", "gen:", "sink:", "--mode", "copy"],
            "--mode needs an end front: or back:",
        ),
        (
            &["link", "gen:", "sink:", "--once"],
            "--once and --wait need an end",
        ),
        (
            &["link", "gen:", "back:/x", "--queues", "2"],
            "has one queue",
        ),
        (
            &["link", "memif:/x?colour=red", "sink:"],
            "role, id, secret, ring, buffer",
        ),
        (&["link", "tap:x?mtu=9000", "sink:"], "tap: has netns"),
        (&["link", "front:/x?mtu=9000", "sink:"], "no options"),
        (&["link", "replay:/x?paced=1", "sink:"], "has no value"),
        (&["gen", "sink:", "--size", "10"], "30 to 65535"),
        (&["sink", "gen:", "--name", "a/b"], "letters, digits"),
        (
            &["front", "/x", "sink:", "--max-grants", "3"],
            "--max-grants",
        ),
        (&["link", "sink", "gen:"], "an end is tap:NAME"),
    ];
    for (args, what) in cases {
        let said = run(args);
        ended(&said, 2, what);
        assert!(said.stdout.is_empty(), "{}", said.report());
    }
}

#[test]
fn two_backs_do_not_share_a_socket_and_a_file_is_not_taken_for_one() {
    let place = Place::new("net-twice");
    let mut first = start(&["back", &place.socket(), "sink:"]);
    says(&mut first, "waiting");
    let taken = "another process listens there";
    ended(&run(&["back", &place.socket(), "sink:"]), 1, taken);
    ended(
        &run(&["sink", &format!("{}?role=server", place.at("memif"))]),
        1,
        taken,
    );
    let said = run(&["front", &place.socket(), "gen:count=10"]);
    assert!(
        said.is_ok(),
        "the first one is still there: {}",
        said.report()
    );
    let file = place.path("precious");
    std::fs::write(&file, "x").expect("written");
    ended(
        &run(&["back", &file.display().to_string(), "sink:"]),
        1,
        "not a socket",
    );
    assert!(file.exists());
    let nowhere = place.path("no/such/folder").display().to_string();
    ended(
        &run(&["back", &nowhere, "sink:"]),
        1,
        "the directory does not exist",
    );
}

#[test]
fn a_name_is_one_process_s() {
    let place = Place::new("net-name");
    let name = place.named("x");
    let _first = start(&["link", "gen:rate=10", "sink:", "--name", &name]);
    shows(&name, "there", |_| true);
    ended(
        &run(&["link", "gen:", "sink:", "--name", &name]),
        1,
        "another --name",
    );
}

#[test]
fn a_front_that_wants_another_mode_is_told_so_and_the_back_serves_the_next() {
    let place = Place::new("net-mode");
    let mut back = start(&["link", "sink:", &place.at("back"), "--mode", "copy"]);
    says(&mut back, "waiting");
    let said = run(&["front", &place.socket(), "gen:", "--mode", "map"]);
    ended(&said, 4, "another --mode");
    let said = run(&["front", &place.socket(), "gen:count=10"]);
    assert!(said.is_ok(), "{}", said.report());
    assert!(back.is_running());
}

#[test]
fn sides_whose_queues_differ_are_told_so_and_are_seen_from_every_network_namespace() {
    // Only TAP devices have several queues.
    let machines = match Machines::new("net-queues", 0) {
        Ok(machines) if Path::new("/dev/net/tun").exists() => machines,
        Ok(_) => return eprintln!("SKIPPED net-queues: no /dev/net/tun"),
        Err(why) => return eprintln!("SKIPPED net-queues: {why}"),
    };
    let place = Place::new("net-queues");
    let name = place.named("back");
    let net_at = |side, args: &[&str]| {
        let mut command = machines.command(side, memlane());
        command.arg("net").args(args);
        command
    };
    let mut back = Running::start(net_at(
        Side::Server,
        &[
            "back",
            &place.socket(),
            "tap:two",
            "--queues",
            "2",
            "--name",
            &name,
        ],
    ));
    says(&mut back, "waiting");
    let said = run(&["front", &place.socket(), "gen:"]);
    ended(&said, 4, "the back: has more queues");
    says(&mut back, "no link yet: the front has fewer queues");
    let fewer = start(&["back", &place.path("one").display().to_string(), "sink:"]);
    let other = place.path("one").display().to_string();
    let front = net_at(
        Side::Client,
        &["front", &other, "tap:two", "--queues", "2", "--wait", "30s"],
    );
    ended(&harness::run(front, LIMIT), 4, "the same --queues");
    drop(fewer);
    let front = net_at(
        Side::Client,
        &["front", &place.socket(), "tap:two", "--queues", "2"],
    );
    let _front = Running::start(front);
    let seen = shows(&name, "joined", |seen| seen["state"] == "joined");
    let queues = seen["ends"][1]["queues"].as_array().map(Vec::len);
    assert_eq!(queues, Some(2), "{seen:#}");
}

#[test]
fn a_memif_secret_lets_in_who_knows_it_and_is_shown_to_nobody() {
    let place = Place::new("net-secret");
    let name = place.named("server");
    let at = |secret: &str, more: &str| format!("{}?secret={secret}&id=3{more}", place.at("memif"));
    let server = start(&[
        "sink",
        &at("hush-hush", "&role=server"),
        "--name",
        &name,
        "--json",
    ]);
    shows(&name, "there", |_| true);
    let said = run(&["gen", &at("guess", ""), "--count", "10", "--wait", "500ms"]);
    ended(&said, 7, "refused");
    let said = run(&[
        "gen",
        &at("hush-hush", "&ring=64&buffer=4096"),
        "--size",
        "9000",
        "--count",
        "10",
    ]);
    assert!(said.is_ok(), "{}", said.report());
    shows(&name, "served", |seen| {
        number(&seen["ends"][1]["verdict"]["good"]) == 10
    });
    server.signal("TERM");
    let server = server.finish(LIMIT);
    assert!(server.is_ok(), "{}", server.report());
    for text in [&server.stdout, &server.stderr, &said.stdout, &said.stderr] {
        assert!(!text.contains("hush-hush"), "{text}");
    }
    assert!(
        server.stdout.contains("secret=***&id=3"),
        "{}",
        server.report()
    );
}
