//! The JSON of the `memlane net` verbs, checked by shape, and the Prometheus page, checked by grammar and contents.

use std::process::Command;
use std::time::Duration;

use memlane_system::blocks::memlane;
use memlane_system::documents::{faults, keeps_its_shape, page};
use memlane_system::harness::{self, Outcome, Running, TempDir, free_port};

const LIMIT: Duration = Duration::from_secs(60);

fn net(args: &[&str]) -> Command {
    let mut command = Command::new(memlane());
    command.arg("net").args(args);
    command
}

fn run(args: &[&str]) -> Outcome {
    let said = harness::run(net(args), LIMIT);
    assert!(said.is_ok(), "{}", said.report());
    said
}

/// A back with a sink and a front with a generator, both with pages for Prometheus.
struct Scene {
    back: Running,
    front: Running,
    names: [String; 2],
    metrics: [String; 2],
    _dir: TempDir,
}

fn scene(test: &str) -> Scene {
    let dir = TempDir::new(test);
    let socket = dir.path().join("s").display().to_string();
    let names = ["back", "front"].map(|side| format!("{test}-{side}-{}", std::process::id()));
    let metrics = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let mut back = net(&["back", &socket, "sink:", "--json"]);
    back.args(["--name", &names[0], "--metrics", &metrics[0]]);
    let mut front = net(&["front", &socket, "gen:rate=5000", "--json", "--wait", "30s"]);
    front.args(["--name", &names[1], "--metrics", &metrics[1]]);
    let mut scene = Scene {
        back: Running::start(back),
        front: Running::start(front),
        names,
        metrics,
        _dir: dir,
    };
    for (running, at) in [
        (&mut scene.back, &scene.metrics[0]),
        (&mut scene.front, &scene.metrics[1]),
    ] {
        let mut tries = 0;
        while !running.stderr().contains("linked") || sample(at, "memlane_net_frames_total{") == 0.0
        {
            tries += 1;
            assert!(running.is_running() && tries < 1000, "{}", running.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    scene
}

/// The sum of all samples that begin so.
fn sample(at: &str, series: &str) -> f64 {
    let (_, body) = page(at, "/metrics");
    let lines = body.lines().filter(|line| line.starts_with(series));
    lines
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

#[test]
fn documents_keep_their_fields_as_long_as_they_keep_their_schema() {
    let scene = scene("net-documents");
    let both = run(&["stats", &scene.names[0], "--json"]);
    keeps_its_shape("net-stats", both.stdout.as_bytes(), "memlane.net-stats/1");
    let sent = run(&["gen", "sink:", "--count", "10", "--json"]);
    keeps_its_shape("net-gen", sent.stdout.as_bytes(), "memlane.net-gen/1");
    let came = run(&["sink", "gen:count=10", "--json"]);
    keeps_its_shape("net-sink", came.stdout.as_bytes(), "memlane.net-sink/1");
    for (running, name) in [(scene.front, "net-front"), (scene.back, "net-back")] {
        running.signal("TERM");
        let said = running.finish(LIMIT);
        assert!(said.is_ok(), "{}", said.report());
        keeps_its_shape(name, said.stdout.as_bytes(), "memlane.net-link/1");
    }
}

#[test]
fn a_page_for_prometheus_is_well_formed_and_its_counters_go_up() {
    let scene = scene("net-metrics");
    for (at, name) in scene.metrics.iter().zip(&scene.names) {
        let (head, body) = page(at, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        let wrong = faults(&body);
        assert!(wrong.is_empty(), "{wrong:?}\n{body}");
        let label = format!("name=\"{name}\"");
        let samples = body.lines().filter(|line| !line.starts_with('#'));
        assert!(
            samples.into_iter().all(|line| line.contains(&label)),
            "{body}"
        );
        let joined = format!("memlane_net_joined{{{label}}}");
        assert!(sample(at, &joined) > 0.0, "{body}");
        assert!(sample(at, "memlane_net_attaches_total") > 0.0, "{body}");
        let before = sample(at, "memlane_net_frames_total{");
        let mut tries = 0;
        while sample(at, "memlane_net_frames_total{") <= before {
            tries += 1;
            assert!(tries < 1000, "it stands still at {before}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // Only a back has tables, only a sink has something to say of frames.
    let [back, front] = &scene.metrics;
    for (series, least) in [
        ("memlane_net_grants{", 1.0),
        ("memlane_net_grants_max{", 512.0),
        ("memlane_net_grant_hits_total{", 1.0),
        ("memlane_net_sink_frames{", 1.0),
    ] {
        assert!(
            sample(back, series) >= least,
            "{series}: {}",
            page(back, "/metrics").1
        );
        assert!(!page(front, "/metrics").1.contains(series), "{series}");
    }
}
