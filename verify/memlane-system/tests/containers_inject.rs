//! memlane in programs that nobody starts with `memlane run`: what `agent install` and `enable` write, and that programs which
//! inherit it work.

use std::path::Path;
use std::process::Command;

use memlane_system::harness::{Built, TempDir, plain_only};
use memlane_system::musl;

fn memlane(args: &[&str]) -> (bool, String, String) {
    let built = Built::find();
    let done = Command::new(built.memlane.expect("`cargo build --release` first"))
        .args(args)
        .env("MEMLANE_PRELOAD", &built.preload)
        .output()
        .expect("memlane runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        done.status.success(),
        text(&done.stdout),
        text(&done.stderr),
    )
}

fn at(dir: &TempDir, path: &str) -> String {
    dir.path().join(path).display().to_string()
}

#[test]
fn install_writes_a_device_that_names_what_it_has_laid_out() {
    if plain_only() {
        return;
    }
    let dir = TempDir::new("inject-install");
    let destdir = at(&dir, "");
    let (well, _, said) = memlane(&[
        "agent",
        "install",
        "--domain",
        "/run/memlane/shop",
        "--destdir",
        &destdir,
    ]);
    assert!(well, "{said}");
    let spec = std::fs::read_to_string(at(&dir, "etc/cdi/memlane.json")).expect("a device");
    let spec: serde_json::Value = serde_json::from_str(&spec).expect("JSON");
    let edits = &spec["devices"][0]["containerEdits"];
    let host = edits["mounts"][0]["hostPath"].as_str().expect("a path");
    for folder in ["lib", "lib64", "lib/x86_64-linux-gnu", "$LIB"] {
        let library = dir
            .path()
            .join(&host[1..])
            .join(folder)
            .join("libmemlane_preload.so");
        assert!(library.is_file(), "{}", library.display());
    }
    assert_eq!(edits["mounts"][1]["containerPath"], "/run/memlane/shop");
    let unit = std::fs::read_to_string(at(&dir, "etc/systemd/system/memlane-agent.service"));
    let unit = unit.expect("a unit");
    assert!(
        unit.contains("memlane agent $MEMLANE_AGENT_DOMAINS"),
        "{unit}"
    );
}

#[test]
fn enable_writes_a_drop_in_and_disable_takes_it_away() {
    if plain_only() {
        return;
    }
    let dir = TempDir::new("inject-enable");
    let (drop_ins, tree) = (at(&dir, "units"), at(&dir, "tree"));
    let to = ["--drop-ins", &drop_ins, "--tree", &tree];
    let (well, said, error) = memlane(&[&["enable", "redis", "pg@15"], &to[..]].concat());
    assert!(
        well && said.contains("restart redis.service pg@15.service"),
        "{said}{error}"
    );
    let file = dir.path().join("units/redis.service.d/50-memlane.conf");
    let text = std::fs::read_to_string(&file).expect("a drop-in");
    let preload = text
        .lines()
        .find_map(|line| line.strip_prefix("Environment=\"LD_PRELOAD="))
        .and_then(|rest| rest.strip_suffix('"'))
        .expect("a variable");
    // A program that gets just this has the library: it says so when it ends.
    let done = Command::new("sh")
        .args(["-c", "grep -c libmemlane_preload /proc/self/maps"])
        .env("LD_PRELOAD", preload)
        .output()
        .expect("sh");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "not loaded: {said}");
    assert_eq!(said, "");
    if musl::is_here() {
        let mut program = Command::new(musl::end("other_libc"));
        let done = program.arg("maps").env("LD_PRELOAD", preload).output();
        let said = String::from_utf8_lossy(&done.expect("it runs").stdout).into_owned();
        assert!(said.contains("libmemlane_preload"), "with musl: {said}");
    }
    let (well, _, error) = memlane(&["disable", "redis", "--drop-ins", &drop_ins, "--tree", &tree]);
    assert!(well && !file.exists(), "{error}");
    let (well, _, error) = memlane(&["disable", "redis", "--drop-ins", &drop_ins, "--tree", &tree]);
    assert!(
        !well && error.contains("redis.service is not enabled"),
        "{error}"
    );
}

#[test]
fn enable_refuses_what_is_no_name_of_a_service() {
    for name in ["../../etc/passwd", "cups.socket", ""] {
        let done = Command::new(Built::find().memlane.expect("built"))
            .args(["enable", name])
            .output()
            .expect("memlane runs");
        assert_eq!(done.status.code(), Some(2), "{name}");
    }
    assert!(!Path::new("/etc/systemd/system/cups.socket.d/50-memlane.conf").exists());
}
