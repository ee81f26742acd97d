//! CUDA regions through the command, with the driver that the device-memory lane's own tests build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memlane_system::blocks::{memlane, skip};
use memlane_system::harness::{self, Outcome, Running, TempDir};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// A folder with a `libcuda.so.1`; `None`, loudly: nothing compiles it.
fn driver(test: &str, properties: &[&str]) -> Option<TempDir> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lanes/memlane-devmem/tests/fake/cuda.c");
    let folder = TempDir::new(test);
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .arg(folder.path().join("libcuda.so.1"))
        .arg(source)
        .args(properties);
    match cc.output() {
        Err(why) => {
            skip(test, &format!("no C compiler: {why}"));
            None
        }
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            Some(folder)
        }
    }
}

fn command(library: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(memlane());
    command
        .args(args)
        .env("LD_LIBRARY_PATH", PathBuf::from(library));
    command
}

fn run(library: &Path, args: &[&str]) -> Outcome {
    harness::run(command(library, args), LIMIT)
}

#[test]
fn devices_are_shown_and_what_is_missing_is_said() {
    let Some(folder) = driver("cuda-shown", &[]) else {
        return;
    };
    let shown = run(folder.path(), &["devmem", "ls", "--json"]);
    assert!(shown.is_ok(), "{}", shown.report());
    let document: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let found = document["findings"].as_array().expect("a list");
    let here = |name: &str| {
        let found = found.iter().find(|one| one["name"] == name);
        found.map(|one| one["here"].clone())
    };
    assert_eq!(here("cuda:0"), Some(Value::Bool(true)));
    assert_eq!(here("cuda:1"), Some(Value::Bool(true)));
    assert_eq!(here("cuda:2"), None);
    let into = |region: &str| {
        let listen = ["nc", "-l", "127.0.0.1:0", "--into", region];
        run(folder.path(), &listen)
    };
    for (region, exit, says) in [
        ("cuda:2:1M", 3, "cuda:0 to cuda:1"),
        ("cuda:0:2G", 1, "out of memory"),
        ("cuda:x:1M", 2, "cuda:N:SIZE"),
    ] {
        let refused = into(region);
        assert_eq!(refused.status.code(), Some(exit), "{}", refused.report());
        assert!(refused.stderr.contains(says), "{}", refused.report());
    }
    let Some(old) = driver("cuda-old", &["-DVERSION=10020"]) else {
        return;
    };
    let refused = run(
        old.path(),
        &["nc", "-l", "127.0.0.1:0", "--into", "cuda:0:1M"],
    );
    assert_eq!(refused.status.code(), Some(3), "{}", refused.report());
    assert!(refused.stderr.contains("CUDA 10.2"), "{}", refused.report());
}

/// Two processes, from one device into another.
#[test]
fn a_pattern_goes_from_a_device_to_a_device() {
    let Some(folder) = driver("cuda-nc", &[]) else {
        return;
    };
    let command = |args: &[&str]| command(folder.path(), args);
    a_pattern_goes(command, ["cuda:1:4M", "cuda:0:8M"]);
}

#[test]
fn a_pattern_goes_into_this_machine_s_own_device_and_out_of_it() {
    let command = |args: &[&str]| {
        let mut command = Command::new(memlane());
        command.args(args);
        command
    };
    let shown = harness::run(command(&["devmem", "ls", "--json"]), LIMIT);
    assert!(shown.is_ok(), "{}", shown.report());
    let document: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let found = document["findings"].as_array().expect("a list");
    if !found
        .iter()
        .any(|one| one["name"] == "cuda:0" && one["here"] == true)
    {
        // Few machines have one: never a failure.
        return eprintln!("SKIPPED cuda: this machine has no device of CUDA's");
    }
    a_pattern_goes(command, ["cuda:0:64M", "cuda:0:64M"]);
}

/// From a region into a region, which both are a device's.
fn a_pattern_goes(command: impl Fn(&[&str]) -> Command, [from, to]: [&str; 2]) {
    let into = ["--into", to, "--validate", "7", "--json"];
    let listen = ["nc", "-l", "127.0.0.1:0"];
    let mut receiver = Running::start(command(&[&listen[..], &into].concat()));
    let begin = Instant::now();
    let at = loop {
        let said = receiver.stderr();
        let line = said.lines().find(|line| line.contains("listening on "));
        if let Some((_, at)) = line.and_then(|line| line.rsplit_once(' ')) {
            break at.to_owned();
        }
        let alive = receiver.is_running() && begin.elapsed() < LIMIT;
        assert!(alive, "no receiver: {said}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let from = ["--from", from, "--bytes", "60M", "--validate", "7"];
    let sent = harness::run(command(&[&["nc", &at][..], &from].concat()), LIMIT);
    assert!(sent.is_ok(), "{}", sent.report());
    let received = receiver.finish(LIMIT);
    assert!(received.is_ok(), "{}", received.report());
    let counted: Value = serde_json::from_str(&received.stdout).expect("JSON");
    assert_eq!(counted["path"], "staged");
    assert_eq!(counted["bytes"], 60 << 20);
    assert_eq!(counted["bounced_per_byte"], 1.0, "{counted}");
    assert_eq!(counted["tokens_out"], 0);
    assert_eq!(counted["chunks_free"], counted["chunks"]);
    let passed = counted["passed"].to_string();
    assert!(passed.contains("the CPU cannot reach cuda:0"), "{passed}");
}
