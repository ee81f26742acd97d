//! An installed memlane runs from where it is. Uninstalling it, or installing the next version, disturbs neither
//! running programs nor the programs that they start.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use memlane_system::harness::{
    Built, Running, TempDir, find_csi, find_webhook, is_root, plain_only, run,
};

const LIMIT: Duration = Duration::from_secs(60);
const VERSION: &str = env!("CARGO_PKG_VERSION");
const LIBRARY: &str = "libmemlane_preload.so";

fn packaging(script: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let mut command = Command::new("sh");
    command.arg(root.join(script));
    command
}

/// Command and library side by side, as a build leaves them.
fn built(dir: &Path) -> PathBuf {
    let found = Built::find();
    let built = dir.join("built");
    std::fs::create_dir_all(&built).expect("a folder");
    let memlane = found.memlane.expect("memlane is built");
    for (from, name) in [(memlane, "memlane"), (found.preload, LIBRARY)] {
        std::fs::copy(from, built.join(name)).expect("copied");
    }
    built
}

/// The programs for Kubernetes side by side.
fn kubernetes(dir: &Path) -> PathBuf {
    let built = dir.join("kubernetes");
    std::fs::create_dir_all(&built).expect("a folder");
    std::fs::copy(find_csi(), built.join("memlane-csi")).expect("copied");
    let at = built.join("memlane-webhook");
    match find_webhook() {
        Some(webhook) => std::fs::copy(webhook, at).map(drop).expect("copied"),
        // Only tests in a cluster build it.
        None => says(&at, &format!("memlane-webhook {VERSION}")),
    }
    built
}

/// Makes a program that says something and ends.
fn says(at: &Path, text: &str) {
    let source = at.with_extension("c");
    let code = format!("#include <stdio.h>\nint main(void) {{ return puts(\"{text}\") < 0; }}\n");
    std::fs::write(&source, code).expect("written");
    let mut cc = Command::new("cc");
    done({
        cc.args(["-O2", "-fPIE", "-pie", "-Wl,-z,relro,-z,now", "-o"]);
        cc.arg(at).arg(&source);
        cc
    });
    std::fs::remove_file(source).expect("ours");
}

/// The command becomes the programs that lie beside it.
#[track_caller]
fn becomes(memlane: &Path) {
    for verb in ["webhook", "csi"] {
        let mut command = Command::new(memlane);
        let output = done({
            command.args([verb, "--version"]);
            command
        });
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said.trim(), format!("memlane-{verb} {VERSION}"));
    }
}

#[track_caller]
fn done(mut command: Command) -> Output {
    let output = command.output().expect("started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}");
    output
}

fn install(verb: &str, prefix: &Path, more: &[&str]) -> String {
    let mut command = packaging("install.sh");
    command.args([verb, "--prefix"]).arg(prefix).args(more);
    String::from_utf8_lossy(&done(command).stderr).into_owned()
}

/// A pair of its own says that bytes took the lane.
#[track_caller]
fn works(memlane: &Path) {
    let mut command = Command::new(memlane);
    command.arg("check").env_remove("MEMLANE_PRELOAD");
    let output = done(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("MEMLANE"), "{text}");
}

/// Two programs with a connection, for as long as the file `go` is not there; then they go on for a while, start
/// children, and end.
const TALK: &str = r#"
import os, socket, subprocess, sys, time, hashlib
home = sys.argv[1]
go = os.path.join(home, 'go')
server = socket.socket()
server.bind(('127.0.0.1', 0))
server.listen()
if os.fork() == 0:
    peer, _ = server.accept()
    while True:
        data = peer.recv(65536)
        if not data: os._exit(0)
        peer.sendall(data)
client = socket.create_connection(server.getsockname())
server.close()
def exchange(turn):
    data = hashlib.sha256(b'%d' % turn).digest() * (1 + turn % 200)
    client.sendall(data)
    back = b''
    while len(back) < len(data):
        back += client.recv(65536)
    assert back == data, turn
turn = 0
while not os.path.exists(go):
    exchange(turn); turn += 1
    if turn == 300: open(os.path.join(home, 'ready'), 'w').close()
for turn in range(300): exchange(turn)
child = subprocess.run(['sh', '-c', 'sh -c true'], capture_output=True)
assert child.returncode == 0 and not child.stderr, child.stderr
exchange(77)
client.close()
os.wait()
print('all right')
"#;

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: install: not installed: python3");
    }
    found
}

/// Those two, when they have begun.
fn talking(memlane: &Path, preload: Option<&Path>, home: &Path) -> Running {
    std::fs::create_dir_all(home).expect("a folder");
    let script = home.join("talk.py");
    std::fs::write(&script, TALK).expect("written");
    let mut command = Command::new(memlane);
    command.env_remove("MEMLANE_PRELOAD");
    if let Some(preload) = preload {
        command.env("MEMLANE_PRELOAD", preload);
    }
    command.args(["run", "--upgrade", "eager", "--", "python3"]);
    command.arg(script).arg(home);
    let mut running = Running::start(command);
    running.wait_until(LIMIT, "the first exchanges", || home.join("ready").exists());
    running
}

#[track_caller]
fn they_end_well(running: Running, home: &Path) {
    std::fs::write(home.join("go"), "").expect("written");
    let done = running.finish(LIMIT);
    assert!(
        done.is_ok() && done.stdout.contains("all right"),
        "{}",
        done.report()
    );
    assert!(done.stderr.is_empty(), "{}", done.report());
}

#[test]
fn programs_outlive_what_they_were_started_from() {
    if plain_only() || !has_python() {
        return;
    }
    let dir = TempDir::new("install");
    let built = built(dir.path());
    let prefix = dir.path().join("opt");
    let from = ["--built", built.to_str().expect("UTF-8")];
    install("install", &prefix, &from);
    let library = prefix.join("lib/memlane").join(VERSION).join(LIBRARY);
    assert!(library.is_file());
    for file in [
        "share/doc/memlane/LICENSE-MIT",
        "share/doc/memlane/docs/guides/sockets.md",
        "lib/systemd/system/memlane-serve.service",
    ] {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    let unit = std::fs::read_to_string(prefix.join("lib/systemd/system/memlane-serve.service"));
    let exec = format!("ExecStart={}", prefix.join("bin/memlane").display());
    assert!(unit.expect("a unit").contains(&exec));
    works(&prefix.join("bin/memlane"));
    // A prefix may be moved: nothing in it knows where it was.
    let moved = dir.path().join("moved");
    std::fs::rename(&prefix, &moved).expect("moved");
    works(&moved.join("bin/memlane"));
    std::fs::rename(&moved, &prefix).expect("moved back");

    let home = dir.path().join("talk");
    let running = talking(&prefix.join("bin/memlane"), None, &home);
    // Once more over itself while they run, then all of it away.
    install("install", &prefix, &from);
    let said = install("uninstall", &prefix, &[]);
    assert!(said.contains("stays"), "{said}");
    assert!(!prefix.join("bin/memlane").exists());
    assert!(!prefix.join("share/doc/memlane").exists());
    assert!(library.is_file(), "taken away from programs that run");
    they_end_well(running, &home);
    let said = install("sweep", &prefix, &[]);
    assert!(said.is_empty() && !library.exists(), "{said}");
}

#[test]
fn the_programs_for_kubernetes_are_found_from_the_command_and_go_with_it() {
    if plain_only() {
        return;
    }
    let dir = TempDir::new("install-kubernetes");
    let (built, beside) = (built(dir.path()), kubernetes(dir.path()));
    let prefix = dir.path().join("opt");
    let from = ["--built", built.to_str().expect("UTF-8")];
    let with = [
        &from[..],
        &["--kubernetes", beside.to_str().expect("UTF-8")],
    ]
    .concat();
    install("install", &prefix, &with);
    becomes(&prefix.join("bin/memlane"));
    for file in ["chart/Chart.yaml", "memlane.yaml", "grafana.json"] {
        let file = prefix.join("share/memlane/kubernetes").join(file);
        assert!(file.is_file(), "{}", file.display());
    }
    // A prefix may be moved.
    let moved = dir.path().join("moved");
    std::fs::rename(&prefix, &moved).expect("moved");
    becomes(&moved.join("bin/memlane"));
    std::fs::rename(&moved, &prefix).expect("moved back");
    install("uninstall", &prefix, &[]);
    for folder in ["libexec/memlane", "share/memlane", "share/doc/memlane"] {
        assert!(!prefix.join(folder).exists(), "{folder} stays");
    }
    // What an older build has left there is not taken.
    std::fs::remove_file(beside.join("memlane-csi")).expect("ours");
    says(&beside.join("memlane-csi"), "memlane-csi 0.0.9");
    let mut command = packaging("install.sh");
    command
        .args(["install", "--prefix"])
        .arg(&prefix)
        .args(&with);
    let output = command.output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("says that it is memlane-csi 0.0.9"), "{said}");
}

/// By systemd's own reader, where it is there: it need not run.
#[test]
fn installed_units_are_understood_by_systemd() {
    let analyzer = Command::new("systemd-analyze").arg("--version").output();
    if plain_only() || !analyzer.is_ok_and(|said| said.status.success()) {
        eprintln!("SKIPPED install: units: no systemd-analyze");
        return;
    }
    let dir = TempDir::new("install-units");
    let built = built(dir.path());
    let prefix = dir.path().join("opt");
    let from = ["--built", built.to_str().expect("UTF-8")];
    install("install", &prefix, &from);
    let units = std::fs::read_dir(prefix.join("lib/systemd/system")).expect("units");
    let mut units: Vec<PathBuf> = units.flatten().map(|unit| unit.path()).collect();
    assert!(units.len() >= 5, "{units:?}");
    let verify = |units: &[PathBuf]| {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).args(units);
        let done = run(command, LIMIT);
        (done.is_ok(), done.stderr)
    };
    let (well, said) = verify(&units);
    // Not each complaint is a failure to it; and it may have some about the machine's own units.
    let ours = said.lines().find(|line| line.contains("memlane"));
    assert!(well && ours.is_none(), "{said}");
    // It does look at what would be started.
    std::fs::remove_file(prefix.join("bin/memlane")).expect("removed");
    units.retain(|unit| unit.ends_with("memlane-exporter.service"));
    assert!(!verify(&units).0);
}

#[test]
fn two_versions_stand_side_by_side_and_a_library_of_another_one_is_not_taken() {
    if plain_only() {
        return;
    }
    let dir = TempDir::new("install-two");
    let built = built(dir.path());
    let prefix = dir.path().join("opt");
    let from = ["--built", built.to_str().expect("UTF-8")];
    install("install", &prefix, &from);
    let ours = prefix.join("lib/memlane").join(VERSION).join(LIBRARY);
    let others = prefix.join("lib/memlane/0.0.9");
    std::fs::create_dir_all(&others).expect("a folder");
    let bytes = std::fs::read(&ours).expect("the library");
    std::fs::write(others.join(LIBRARY), aged(&bytes)).expect("written");
    works(&prefix.join("bin/memlane"));
    // Without its own it names what it looked for, and takes no other.
    std::fs::rename(&ours, prefix.join("lib/memlane/away")).expect("moved");
    std::fs::write(prefix.join("lib/memlane").join(LIBRARY), aged(&bytes)).expect("written");
    let mut command = Command::new(prefix.join("bin/memlane"));
    command.args(["run", "true"]).env_remove("MEMLANE_PRELOAD");
    let output = command.output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    let looked = format!("lib/memlane/{VERSION}/{LIBRARY}");
    assert!(
        said.contains(&looked) && said.contains("of version 0.0.9"),
        "{said}"
    );
    // Nor one that is named.
    let mut command = Command::new(prefix.join("bin/memlane"));
    command
        .args(["run", "true"])
        .env("MEMLANE_PRELOAD", others.join(LIBRARY));
    let said = String::from_utf8_lossy(&command.output().expect("started").stderr).into_owned();
    assert!(said.contains("of version 0.0.9"), "{said}");
}

/// The library as one of version 0.0.9.
fn aged(bytes: &[u8]) -> Vec<u8> {
    let mark = format!("memlane-preload of version: <{VERSION}>");
    let at = bytes.windows(mark.len()).position(|w| w == mark.as_bytes());
    let at = at.expect("a library says its version");
    let mut bytes = bytes.to_vec();
    bytes[at + mark.len() - 1 - VERSION.len()..at + mark.len() - 1]
        .copy_from_slice(&b"0.0.9\0\0\0"[..VERSION.len()]);
    bytes
}

/// The packages memlane and memlane-kubernetes.
fn deb(built: &Path, out: &Path, version: &str) -> [PathBuf; 2] {
    let mut command = packaging("deb.sh");
    command.arg("--kubernetes").arg(out.join("kubernetes"));
    command.arg("--built").arg(built).arg("--out").arg(out);
    command.args(["--version", version, "--compress", "none"]);
    let output = done(command);
    let packages = String::from_utf8_lossy(&output.stdout).into_owned();
    let packages: Vec<PathBuf> = packages.lines().map(PathBuf::from).collect();
    packages.try_into().expect("two packages")
}

/// Stand-ins for the library for C programs, which no system test builds: shared, with its name, and static.
fn c_library(dir: &Path) -> PathBuf {
    let built = dir.join("c");
    std::fs::create_dir_all(&built).expect("a folder");
    let source = built.join("stand_in.c");
    let text =
        "#include <stdlib.h>\nint memlane_stand_in(void) { return atoi(getenv(\"HOME\")); }\n";
    std::fs::write(&source, text).expect("written");
    let (shared, object) = (built.join("libmemlane_c.so"), built.join("stand_in.o"));
    let soname = "-Wl,-soname,libmemlane.so.0,-z,relro,-z,now";
    let mut cc = Command::new("cc");
    done({
        cc.args(["-O2", "-g", "-shared", "-fPIC", soname, "-o"]);
        cc.arg(&shared).arg(&source);
        cc
    });
    let mut cc = Command::new("cc");
    done({
        cc.args(["-O2", "-g", "-c", "-o"]).arg(&object).arg(&source);
        cc
    });
    let mut ar = Command::new("ar");
    done({
        ar.arg("rc").arg(built.join("libmemlane_c.a")).arg(&object);
        ar
    });
    built
}

/// lintian knows Debian's policy. Its errors and warnings fail the test.
#[test]
fn debian_packages_are_accepted_by_lintian() {
    let tools = ["dpkg-deb", "lintian", "strip", "objdump", "cc"];
    let there = |tool: &&str| Command::new(tool).arg("--version").output().is_ok();
    if plain_only() || !tools.iter().all(there) {
        eprintln!("SKIPPED: install: lintian: no dpkg-deb, lintian, binutils or C compiler");
        return;
    }
    let dir = TempDir::new("install-lintian");
    let built = built(dir.path());
    let mut command = packaging("deb.sh");
    command.arg("--built").arg(built);
    command.arg("--c").arg(c_library(dir.path()));
    command.arg("--kubernetes").arg(kubernetes(dir.path()));
    command.arg("--out").arg(dir.path().join("deb"));
    command.args(["--compress", "gzip"]);
    let output = done(command);
    let packages = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(packages.lines().count(), 4, "{packages}");
    let lint = |packages: &[&str]| {
        let mut command = Command::new("lintian");
        command.args(["--allow-root", "--fail-on", "error,warning"]);
        run(
            {
                command.args(packages);
                command
            },
            LIMIT * 3,
        )
    };
    let accepted = lint(&packages.lines().collect::<Vec<_>>());
    assert!(accepted.is_ok(), "{}", accepted.report());
    // It does look: a package without the trigger for the linker's cache is refused.
    let broken = without_triggers(dir.path(), packages.lines().nth(2).expect("a library"));
    assert!(!lint(&[&broken]).is_ok());
}

/// The package with its file `triggers` removed.
fn without_triggers(dir: &Path, package: &str) -> String {
    let root = dir.join("broken");
    let mut command = Command::new("dpkg-deb");
    command.arg("-R").arg(package).arg(&root);
    done(command);
    std::fs::remove_file(root.join("DEBIAN/triggers")).expect("triggers");
    let broken = dir.join("broken.deb");
    let mut command = Command::new("dpkg-deb");
    command.args(["--build", "--root-owner-group", "-Znone"]);
    command.arg(&root).arg(&broken);
    done(command);
    broken.into_os_string().into_string().expect("UTF-8")
}

#[test]
fn a_tarball_runs_where_it_is_unpacked_and_is_the_same_when_made_again() {
    if plain_only() {
        return;
    }
    let dir = TempDir::new("install-tarball");
    let built = built(dir.path());
    let beside = kubernetes(dir.path());
    let tarball = |out: &str| {
        let mut command = packaging("tarball.sh");
        command.arg("--built").arg(&built);
        command.arg("--kubernetes").arg(&beside);
        command.arg("--out").arg(dir.path().join(out));
        let output = done(command);
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    };
    let (first, second) = (tarball("first"), tarball("second"));
    let bytes = |file: &Path| std::fs::read(file).expect("a tarball");
    assert!(bytes(&first) == bytes(&second), "differs from run to run");
    let mut sum = Command::new("sha256sum");
    sum.args(["--check", "--strict"]);
    sum.arg(first.with_extension("gz.sha256"));
    sum.current_dir(first.parent().expect("a folder"));
    done(sum);
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&first).arg("-C").arg(dir.path());
    done(tar);
    let name = first.file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.strip_suffix(".tar.gz"));
    let memlane = dir.path().join(name.expect("a name")).join("bin/memlane");
    works(&memlane);
    becomes(&memlane);
}

/// `dpkg` on a root of its own, in which nothing else is installed.
fn dpkg(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("dpkg");
    command.arg(format!("--root={}", root.display()));
    command.args(["--force-script-chrootless", "--force-depends"]);
    command.arg(format!("--log={}/log", root.display()));
    command.args(arguments);
    command
}

#[test]
fn a_debian_package_is_installed_upgraded_under_load_and_removed() {
    let tools = ["dpkg-deb", "dpkg", "strip", "objdump"];
    let there = |tool: &&str| Command::new(tool).arg("--version").output().is_ok();
    if plain_only() || !has_python() || !is_root() || !tools.iter().all(there) {
        eprintln!("SKIPPED: install: a Debian package: not root, or no dpkg, strip or objdump");
        return;
    }
    let dir = TempDir::new("install-deb");
    let built = built(dir.path());
    kubernetes(dir.path());
    let [[old, _], [new, beside]] =
        ["0.0.9", VERSION].map(|version| deb(&built, dir.path(), version));

    // Unpacked anywhere, they run.
    let anywhere = dir.path().join("anywhere");
    for package in [&new, &beside] {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(package).arg(&anywhere);
        done(unpack);
    }
    works(&anywhere.join("usr/bin/memlane"));
    becomes(&anywhere.join("usr/bin/memlane"));

    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("a folder");
    std::fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("a folder");
    std::fs::write(root.join("var/lib/dpkg/status"), "").expect("written");
    done(dpkg(&root, &["-i", old.to_str().expect("UTF-8")]));
    let at = |version: &str| root.join("usr/lib/memlane").join(version).join(LIBRARY);
    assert!(at("0.0.9").is_file());
    let memlane = root.join("usr/bin/memlane");
    works(&memlane);

    let home = dir.path().join("talk");
    let running = talking(&memlane, Some(&at("0.0.9")), &home);
    done(dpkg(&root, &["-i", new.to_str().expect("UTF-8")]));
    assert!(at(VERSION).is_file());
    assert!(at("0.0.9").is_file(), "taken away from programs that run");
    works(&memlane);
    done(dpkg(&root, &["-i", beside.to_str().expect("UTF-8")]));
    becomes(&memlane);
    done(dpkg(&root, &["--remove", "memlane-kubernetes"]));
    done(dpkg(&root, &["--remove", "memlane"]));
    assert!(!memlane.exists() && !at(VERSION).exists());
    assert!(at("0.0.9").is_file(), "taken away from programs that run");
    they_end_well(running, &home);
    done(dpkg(&root, &["-i", new.to_str().expect("UTF-8")]));
    assert!(!at("0.0.9").exists(), "what nobody uses any more stays");
    done(dpkg(&root, &["--purge", "memlane"]));
    let left = Command::new("find")
        .args(["usr/lib", "usr/libexec", "usr/share/memlane"])
        .current_dir(&root)
        .arg("-type")
        .arg("f")
        .output();
    let left = left.expect("started").stdout;
    assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
}

/// Nothing here takes long but the waiting for programs.
#[test]
fn the_scripts_say_how_they_are_called() {
    let begin = Instant::now();
    for wrong in [
        &["frob"][..],
        &["install", "--prefix", "relative"],
        &["install", "--frob", "x"],
    ] {
        let mut command = packaging("install.sh");
        let output = command.args(wrong).output().expect("started");
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(!output.stderr.is_empty());
    }
    assert!(begin.elapsed() < LIMIT);
}
