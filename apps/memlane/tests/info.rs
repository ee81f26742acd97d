//! `memlane info`: what is here, what is not and why, as text and as a document.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use common::{Dir, assert_golden, clean, memlane, stderr, stdout};
use serde_json::Value;

fn told(command: &mut Command) -> (Value, Output) {
    let output = command.arg("--json").output().unwrap();
    assert_eq!(stderr(&output), "");
    (serde_json::from_slice(&output.stdout).unwrap(), output)
}

/// Of one lane, what it says of one thing.
fn finding(document: &Value, lane: &str, name: &str) -> Value {
    let lanes = document["lanes"].as_array().unwrap();
    let lane = lanes.iter().find(|one| one["lane"] == lane).unwrap();
    let findings = lane["findings"].as_array().unwrap();
    findings
        .iter()
        .find(|one| one["name"] == name)
        .unwrap()
        .clone()
}

/// Every path to a value, without numbers of elements.
fn paths(value: &Value, so_far: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                paths(value, &format!("{so_far}.{name}"), found);
            }
        }
        Value::Array(all) => {
            for value in all {
                paths(value, &format!("{so_far}[]"), found);
            }
        }
        _ => {
            found.insert(so_far.to_owned());
        }
    }
}

/// No library, and a setting that is wrong: so that each list has something in it.
fn without_library() -> Command {
    let mut command = memlane();
    command.arg("info");
    command.env("MEMLANE_PRELOAD", "/nowhere/lib.so");
    command.env("MEMLANE_RING", "3");
    command
}

#[test]
fn the_document_keeps_its_fields_and_names_what_is_missing() {
    let (document, output) = told(&mut without_library());
    assert_eq!(
        output.status.code(),
        Some(0),
        "only who asks for a lane is told by a code"
    );
    assert_eq!(document["schema"], "memlane.info/1");
    let mut found = BTreeSet::new();
    paths(&document, "", &mut found);
    let shape: String = found.iter().map(|path| format!("{path}\n")).collect();
    assert_golden("info.txt", &shape);

    let library = finding(&document, "sockets", "library");
    assert_eq!(
        (&library["here"], &library["optional"]),
        (&false.into(), &false.into())
    );
    assert!(
        library["lacks"][0]["why"]
            .as_str()
            .unwrap()
            .contains("/nowhere/lib.so")
    );
    assert_eq!(finding(&document, "sockets", "sock-diag")["here"], true);
    let setting = &document["host"]["settings"][1];
    assert_eq!(setting["variable"], "MEMLANE_RING");
    assert!(
        setting["complaint"]
            .as_str()
            .unwrap()
            .contains("power of two")
    );
}

#[test]
fn a_lane_that_is_asked_for_and_cannot_work_is_code_three() {
    let dir = Dir::new();
    let library = dir.idle_library();
    let with = |lanes: &[&str]| {
        let mut command = memlane();
        command
            .arg("info")
            .args(lanes)
            .env("MEMLANE_PRELOAD", &library);
        command
    };
    let (document, output) = told(&mut with(&["sockets"]));
    assert_eq!(output.status.code(), Some(0), "{document:#}");
    assert_eq!(document["lanes"].as_array().unwrap().len(), 1);
    assert_eq!(
        without_library()
            .arg("sockets")
            .output()
            .unwrap()
            .status
            .code(),
        Some(3)
    );
    assert_eq!(
        without_library()
            .arg("packets")
            .output()
            .unwrap()
            .status
            .code(),
        Some(0)
    );
    let off = with(&["sockets"])
        .env("MEMLANE_DISABLE", "1")
        .output()
        .unwrap();
    assert_eq!(off.status.code(), Some(3));
    assert!(stdout(&off).contains("unset MEMLANE_DISABLE"));
    assert_eq!(with(&["nonsense"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn what_is_not_a_terminal_gets_no_colours_unless_it_is_told_to() {
    let said = |flags: &[&str], no_color: bool| {
        let mut command = without_library();
        command.args(flags);
        if no_color {
            command.env("NO_COLOR", "1");
        }
        stdout(&command.output().unwrap())
    };
    assert!(!said(&["sockets"], false).contains('\x1b'));
    assert!(said(&["sockets", "--color", "always"], true).contains("\x1b[31mno\x1b[0m"));
    let plain = said(&["sockets"], false);
    let painted = said(&["sockets", "--color", "always"], false);
    let stripped = painted
        .split("\x1b[")
        .map(|part| match part.split_once('m') {
            Some((code, rest)) if code.parse::<u8>().is_ok() => rest,
            _ => part,
        });
    let (plain, stripped) = (lines(&plain), stripped.collect::<String>());
    assert_eq!(plain, lines(&stripped), "colours move nothing");
}

/// Without the line on memory, which changes.
fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with("memory "))
        .collect()
}

#[test]
fn another_user_and_an_empty_namespace_are_told_what_they_lack() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let dir = Dir::new();
    let program = dir.memlane();
    let mut nobody = clean(&program);
    nobody
        .args(["info", "packets", "blocks"])
        .uid(65_534)
        .gid(65_534);
    let (document, _) = told(&mut nobody);
    let tap = finding(&document, "packets", "afpacket");
    assert_eq!(tap["here"], false);
    assert!(
        tap["lacks"][0]["to_do"]
            .as_str()
            .unwrap()
            .contains("CAP_NET_RAW")
    );
    assert_eq!(finding(&document, "packets", "memory")["here"], true);
    assert_eq!(document["host"]["uid"], 65_534);

    let mut alone = clean(std::path::Path::new("unshare"));
    alone.arg("--net").arg(&program).args(["info", "sockets"]);
    let (document, output) = told(&mut alone);
    assert_eq!(output.status.code(), Some(3));
    let lo = finding(&document, "sockets", "loopback");
    assert!(
        lo["lacks"][0]["to_do"]
            .as_str()
            .unwrap()
            .contains("ip link set lo up")
    );
}
