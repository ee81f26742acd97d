//! Runs tshark and tcpdump on a capture and reads their output.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memlane_system::harness;

/// Says so, or fails where everything must be there, if a program is missing.
pub(crate) fn has(programs: &[&str]) -> bool {
    let there = |name: &&&str| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {name}")])
            .output();
        found.is_ok_and(|o| o.status.success())
    };
    let missing: Vec<_> = programs.iter().filter(|name| !there(name)).collect();
    if missing.is_empty() {
        return true;
    }
    let all = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some_and(|v| v == "1");
    assert!(!all, "not installed: {missing:?}");
    eprintln!("SKIPPED: trace: not installed: {missing:?}");
    false
}

fn tshark(file: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    // Where the programs themselves leave it to hardware, tshark does not look.
    command
        .args([
            "-n",
            "-o",
            "tcp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
        ])
        .arg("-r")
        .arg(file)
        .args(arguments);
    let done = harness::run(command, Duration::from_secs(60));
    assert!(done.is_ok(), "tshark {arguments:?}: {}", done.report());
    done.stdout
}

/// Values of some fields, one line for each packet that `filter` takes.
pub(crate) fn fields(file: &Path, filter: &str, names: &[&str]) -> Vec<String> {
    let mut arguments = vec!["-Y", filter, "-T", "fields"];
    for name in names {
        arguments.extend(["-e", name]);
    }
    let lines = tshark(file, &arguments);
    lines.lines().map(str::to_owned).collect()
}

/// Nothing in the capture looks wrong to tshark: no malformed packet, no bad checksum, nothing missing, nothing twice.
#[track_caller]
pub(crate) fn assert_flawless(file: &Path) {
    let wrong = fields(
        file,
        "_ws.malformed || tcp.checksum.status == 0 || ip.checksum.status == 0 || _ws.expert.severity >= 6291456 \
         || tcp.analysis.flags",
        &["frame.number", "_ws.expert.message", "tcp.analysis.flags"],
    );
    assert!(
        wrong.is_empty(),
        "{}:\n{}",
        file.display(),
        wrong.join("\n")
    );
    let checked = fields(file, "tcp.checksum.status == 1", &["frame.number"]);
    assert!(!checked.is_empty(), "not one packet with a checksum");
}

/// Both directions of connection `n`, as tshark puts them together: from the end that is seen first, and to it.
pub(crate) fn follow(file: &Path, n: usize) -> [Vec<u8>; 2] {
    let text = tshark(file, &["-q", "-z", &format!("follow,tcp,raw,{n}")]);
    let mut both = [Vec::new(), Vec::new()];
    for line in text.lines() {
        let bytes = unhex(line.trim());
        both[usize::from(line.starts_with('\t'))].extend(bytes);
    }
    both
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect();
    match digits {
        Some(digits) if digits.len().is_multiple_of(2) => {
            digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
        }
        _ => Vec::new(),
    }
}

/// Bodies of HTTP answers by name and number, as tshark saves them.
pub(crate) fn http_objects(file: &Path, dir: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::create_dir_all(dir).expect("a folder");
    tshark(
        file,
        &["-q", "--export-objects", &format!("http,{}", dir.display())],
    );
    let files = std::fs::read_dir(dir).expect("the folder").flatten();
    files
        .map(|f| {
            let name = f.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(f.path()).expect("a file"))
        })
        .collect()
}

/// Lines that `tcpdump -r` prints.
pub(crate) fn tcpdump(file: &Path) -> usize {
    let mut command = Command::new("tcpdump");
    command.args(["-n", "-r"]).arg(file);
    let done = harness::run(command, Duration::from_secs(60));
    assert!(done.is_ok(), "{}", done.report());
    done.stdout.lines().count()
}
