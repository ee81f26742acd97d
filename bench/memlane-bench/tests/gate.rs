//! The gate, with builds that are known to be the same, or slower, or broken.

mod common;

use common::{Dir, memlane_bench, preload, stderr, stdout};
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

/// The command of this build, as it is.
const SAME: &str = "exec COMMAND \"$@\"";
const BROKEN: &str = "echo 'memlane: broken on purpose' >&2
exit 3";

/// A command under which a client of the embedded pair always tells the same rate, whatever the machine does. It is called
/// as `memlane run FLAG… -- PROGRAM ARGUMENT…`.
fn with_a_rate_of(requests: u32) -> String {
    let told = format!(
        r#"{{"exchanges":{requests},"all":{requests},"seconds":1.0,"p50_ns":1000,"p99_ns":2000}}"#
    );
    format!(
        "until [ \"$1\" = -- ]; do shift; done
shift
case \" $* \" in
*\" embedded client \"*) echo '{told}' ;;
*) exec \"$@\" ;;
esac"
    )
}

/// A build whose command is a script; everything else is this build's.
fn build(dir: &Dir, name: &str, script: &str) -> PathBuf {
    let bench = PathBuf::from(env!("CARGO_BIN_EXE_memlane-bench"));
    let command = bench.with_file_name("memlane");
    let folder = dir.0.join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let script = script.replace("COMMAND", &command.display().to_string());
    let memlane = folder.join("memlane");
    std::fs::write(&memlane, format!("#!/bin/sh\n{script}\n")).expect("a script");
    let runs = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&memlane, runs).expect("a mode");
    symlink(&bench, folder.join("memlane-bench")).expect("a link");
    folder
}

fn gate(base: &Path, new: &Path, more: &[&str]) -> Output {
    memlane_bench()
        .envs(preload().map(|library| ("MEMLANE_PRELOAD", library)))
        .arg("gate")
        .arg(base)
        .arg("--built")
        .arg(new)
        .args(more)
        .output()
        .expect("it starts")
}

/// Three rounds of one row.
const SHORT: [&str; 6] = ["--only", "msg100", "--rounds", "3", "--seconds", "0.2"];

#[test]
fn a_build_that_is_slower_is_kept_out_and_one_that_is_the_same_or_faster_is_let_in() {
    let dir = Dir::new();
    let [usual, slower] = [("usual", 1000), ("slower", 950)]
        .map(|(name, rate)| build(&dir, name, &with_a_rate_of(rate)));
    let named = [&SHORT[..], &["--base-name", "an older one"]].concat();
    for (base, new, code, told) in [
        (&usual, &slower, 1, "1 lost, 0 better, 0 held"),
        (&slower, &usual, 0, "0 lost, 1 better, 0 held"),
        (&usual, &usual, 0, "0 lost, 0 better, 1 held"),
    ] {
        let output = gate(base, new, &named);
        let (text, said) = (stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(code), "{text}{said}");
        assert!(text.contains(told), "{told}: {text}{said}");
        assert!(text.contains("BASE: an older one\n"), "{text}");
        // Only a loss is looked at again.
        let again = said.contains("once more, what has lost");
        assert_eq!(again, code == 1, "{said}");
    }
}

#[test]
fn two_real_builds_are_measured_in_each_round() {
    if preload().is_none() {
        return eprintln!("SKIPPED: no preload library: cargo build --release -p memlane-preload");
    }
    let dir = Dir::new();
    let same = build(&dir, "same", SAME);
    let output = gate(&same, &same, &[&SHORT[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    // Which of the two is better on a busy machine, nobody knows.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{report}");
    let figure = &report["figures"][0];
    let rounds = figure["rounds"].as_array().expect("rounds");
    let each = |pair: &Value| pair[0].as_f64() > Some(0.0) && pair[1].as_f64() > Some(0.0);
    assert!(rounds.len() == 3 && rounds.iter().all(each), "{report}");
    assert_eq!(figure["why"], serde_json::json!([null, null]));
}

#[test]
fn a_build_that_fails_where_the_older_one_does_not_is_kept_out_and_the_document_says_why() {
    let dir = Dir::new();
    let usual = build(&dir, "usual", &with_a_rate_of(1000));
    let broken = build(&dir, "broken", BROKEN);
    let output = gate(&usual, &broken, &[&SHORT[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert_eq!(
        (&report["schema"], &report["lost"]),
        (&"memlane.gate/1".into(), &1.into())
    );
    let figure = &report["figures"][0];
    assert_eq!(
        (&figure["row"], &figure["system"]),
        (&"msg100".into(), &"nocopy".into())
    );
    assert_eq!(
        (&figure["verdict"], &figure["ratio"]),
        (&"fails".into(), &Value::Null)
    );
    let why = figure["why"][1].as_str().expect("a reason");
    assert!(why.contains("broken on purpose"), "{why}");
    // Where the older build has no figure, nothing can be said.
    let output = gate(&broken, &usual, &SHORT);
    assert_eq!(output.status.code(), Some(4), "{}", stdout(&output));
}

#[test]
fn nothing_is_compared_with_what_is_no_build_or_for_a_value_that_cannot_be() {
    let dir = Dir::new();
    let same = build(&dir, "same", SAME);
    for (base, more, told) in [
        (&dir.0, &[][..], "no build"),
        (&same, &["--rounds", "2"], "--rounds 2: 3 at least"),
        (&same, &["--seconds", "0"], "0.2"),
        (
            &same,
            &["--only", "no-such-row"],
            "not one of sockets/msg100, ",
        ),
        (
            &same,
            &["--counted", "--only", "msg100"],
            "not one of counted/sockperf-pp, ",
        ),
    ] {
        let output = gate(base, &same, more);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}
