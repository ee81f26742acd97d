//! What `memlane net` shows while it works (`net stats`, the terminal), and after it was killed or stopped.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::memlane;
use memlane_system::harness;
use memlane_system::real::wait_until;
use memlane_system::verbs::{LIMIT, MODES, Place, json, number, run, shows, start, stats};
use serde_json::Value;

#[test]
fn counters_go_up_while_frames_go_and_grants_are_shown_in_each_mode() {
    for mode in MODES {
        let place = Place::new("net-stats");
        let (name, other) = (place.named("back"), place.named("front"));
        let back = start(&["back", &place.socket(), "sink:", "--name", &name]);
        let front = start(&[
            "front",
            &place.socket(),
            "gen:size=1500,rate=20000",
            "--name",
            &other,
            "--mode",
            mode,
            "--wait",
            "30s",
        ]);
        let first = shows(&name, "counting", |seen| {
            number(&seen["ends"][0]["received"]) > 100
        });
        let before = number(&first["ends"][0]["received"]);
        let seen = shows(&name, "counting on", |seen| {
            number(&seen["ends"][0]["received"]) > before
        });
        let (lane, sink) = (&seen["ends"][0], &seen["ends"][1]);
        assert_eq!(
            (&seen["state"], &seen["verb"]),
            (&"joined".into(), &"back".into())
        );
        assert_eq!(
            (&lane["mode"], &lane["peer"]["pid"]),
            (&mode.into(), &front.pid().into())
        );
        assert_eq!(lane["end"], place.at("back").as_str());
        assert!(
            number(&sink["verdict"]["good"]) > 100 && sink["verdict"]["missing"] == 0,
            "{seen:#}"
        );
        let queue = &lane["queues"][0];
        let [tx, rx] = ["tx", "rx"].map(|table| &queue["grants"][table]);
        let kept = mode == "persistent";
        assert_eq!(
            (number(&tx["count"]) > 0, number(&tx["hits"]) > 0),
            (kept, kept),
            "{seen:#}"
        );
        // By default one for each slot of the front's ring. What is lent is given back before it is shown.
        assert_eq!(
            (number(&tx["max"]), number(&tx["in_use"])),
            (256, 0),
            "{seen:#}"
        );
        assert_eq!(number(&rx["count"]), 0, "{seen:#}");
        assert_eq!(number(&queue["copied"]) > 0, mode == "copy", "{seen:#}");
        assert!(
            number(&queue["doorbells"]) + number(&queue["doorbells_avoided"]) > 0,
            "{seen:#}"
        );
        // The other side, found by its number; it has no tables.
        let seen = stats(&front.pid().to_string()).expect("it runs");
        assert_eq!(
            (&seen["name"], &seen["ends"][0]["queues"][0]["grants"]),
            (&other.as_str().into(), &Value::Null)
        );
        assert!(number(&seen["ends"][1]["received"]) > 100, "{seen:#}");
        let text = run(&["stats", &name]);
        for part in [name.as_str(), mode, "GRANTS", "AVOIDED", "good"] {
            assert!(
                text.is_ok() && text.stdout.contains(part),
                "{part}: {}",
                text.report()
            );
        }
        drop((back, front));
    }
}

#[test]
fn a_table_that_is_too_small_is_seen_to_be() {
    let place = Place::new("net-grants");
    let name = place.named("back");
    let _back = start(&[
        "back",
        &place.socket(),
        "sink:",
        "--name",
        &name,
        "--max-grants",
        "8",
    ]);
    let _front = start(&[
        "front",
        &place.socket(),
        "gen:size=64,rate=50000",
        "--wait",
        "30s",
    ]);
    let seen = shows(&name, "short of grants", |seen| {
        let table = &seen["ends"][0]["queues"][0]["grants"]["tx"];
        table["busy"].as_u64() > Some(0)
    });
    let queue = &seen["ends"][0]["queues"][0];
    let table = &queue["grants"]["tx"];
    assert!(
        number(&table["count"]) <= 8 && number(&table["max"]) == 8,
        "{seen:#}"
    );
    // What finds no place is copied.
    assert!(number(&queue["copied"]) > 0, "{seen:#}");
}

#[test]
fn a_killed_process_is_not_shown_and_its_name_and_socket_are_free() {
    let place = Place::new("net-killed");
    let name = place.named("back");
    let args = ["back", &place.socket(), "sink:", "--name", &name];
    let first = start(&args);
    shows(&name, "there", |_| true);
    // It answers before it listens for the other end.
    let socket = place.socket();
    wait_until("its socket", LIMIT, || Path::new(&socket).exists());
    first.stop();
    assert!(Path::new(&socket).exists(), "kill -9 leaves the file");
    assert_eq!(stats(&name), None);
    let said = run(&["stats"]);
    assert!(
        said.is_ok() && !said.stdout.contains(&name),
        "{}",
        said.report()
    );
    let next = start(&args);
    shows(&name, "there again", |seen| seen["pid"] == next.pid());
    let said = run(&["front", &socket, "gen:count=10", "--wait", "30s"]);
    assert!(said.is_ok(), "{}", said.report());
    next.signal("TERM");
    assert!(next.finish(LIMIT).is_ok());
    assert_eq!(stats(&name), None);
}

#[test]
fn one_that_is_stopped_does_not_hide_the_others() {
    let place = Place::new("net-stopped");
    let (one, other) = (place.named("one"), place.named("other"));
    let stopped = start(&["link", "gen:rate=10", "sink:", "--name", &one]);
    let _other = start(&["link", "gen:rate=10", "sink:", "--name", &other]);
    shows(&one, "there", |_| true);
    shows(&other, "there", |_| true);
    stopped.signal("STOP");
    let said = run(&["stats", "--json"]);
    assert!(said.is_ok(), "{}", said.report());
    assert!(
        said.stderr.contains(&format!("{one} is left out")),
        "{}",
        said.report()
    );
    let told = json(&said.stdout);
    let names = told["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|process| &process["name"]);
    assert!(
        names.into_iter().any(|name| *name == other.as_str()),
        "{told:#}"
    );
    stopped.signal("CONT");
    shows(&one, "there again", |_| true);
}

#[test]
fn a_watcher_sees_rates() {
    let place = Place::new("net-watch");
    let name = place.named("link");
    let _link = start(&["link", "gen:rate=2000", "sink:", "--name", &name]);
    shows(&name, "there", |seen| seen["state"] == "joined");
    let mut watching = start(&["stats", &name, "--watch", "100ms"]);
    let end = Instant::now() + LIMIT;
    // From the second table on.
    while !watching.stdout().contains("IN/S") {
        assert!(
            watching.is_running() && Instant::now() < end,
            "{}",
            watching.stdout()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = watching.stdout();
    let before = before.split("IN/S").next().unwrap_or_default();
    assert!(before.contains("AVOIDED"), "{before}");
}

#[test]
fn a_person_sees_how_far_it_is() {
    let place = Place::new("net-progress");
    // A terminal of its own, by script(1).
    let verb = format!(
        "exec {} net gen sink: --rate 1000 --seconds 2.5",
        memlane().display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &verb]).arg(place.path("typescript"));
    let said = harness::run(command, LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    let lines: Vec<&str> = said
        .stdout
        .split('\r')
        .filter(|line| line.contains("frames/s"))
        .collect();
    assert!(
        !lines.is_empty() && lines[0].starts_with("gen: "),
        "{}",
        said.report()
    );
    // To a file, nothing of the kind.
    let said = run(&["gen", "sink:", "--rate", "1000", "--seconds", "1.5"]);
    assert!(
        said.is_ok() && !said.stderr.contains("frames/s"),
        "{}",
        said.report()
    );
}
