//! `memlane run`: environment, exit codes, programs that stay on TCP.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Dir, clean, memlane, stderr, stdout};

/// `memlane run` with a library that does nothing.
fn run(dir: &Dir) -> Command {
    let mut command = memlane();
    command
        .env("MEMLANE_PRELOAD", dir.idle_library())
        .arg("run");
    command
}

fn sh(dir: &Dir, script: &str) -> Output {
    run(dir).args(["--", "sh", "-c", script]).output().unwrap()
}

#[test]
fn the_command_keeps_its_exit_code_and_its_signal() {
    let dir = Dir::new();
    for code in [0, 1, 2, 7, 125, 127] {
        assert_eq!(sh(&dir, &format!("exit {code}")).status.code(), Some(code));
    }
    assert_eq!(sh(&dir, "kill -9 $$").status.signal(), Some(9));
}

#[test]
fn the_command_replaces_the_launcher() {
    let dir = Dir::new();
    let child = run(&dir)
        .args(["sh", "-c", "echo $$"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), format!("{pid}\n"));
}

#[test]
fn the_settings_reach_the_library_and_the_environment_is_passed_on() {
    let dir = Dir::new();
    let output = run(&dir)
        .env("FOO", "bar")
        .env("LD_PRELOAD", "")
        .env("MEMLANE_SPIN", "off")
        .args([
            "--ring",
            "128K",
            "--spin",
            "20",
            "--upgrade",
            "eager",
            "--peer",
            "same-uid",
        ])
        .args([
            "--eid",
            "front",
            "--eid",
            "B.2",
            "--stats-on-exit",
            "--",
            "env",
        ])
        .output()
        .unwrap();
    let text = stdout(&output);
    let library = dir.0.join("idle.so");
    for line in [
        "FOO=bar",
        "MEMLANE_RING=131072",
        "MEMLANE_SPIN=20",
        "MEMLANE_UPGRADE=eager",
        "MEMLANE_PEER=same-uid",
        "MEMLANE_EID=FRONT,B.2",
        "MEMLANE_STATS_ON_EXIT=1",
        &format!("LD_PRELOAD={}", library.display()),
    ] {
        assert_eq!(
            text.lines().filter(|l| *l == line).count(),
            1,
            "{line} in {text}"
        );
    }
    assert_eq!(text.matches("MEMLANE_SPIN=").count(), 1);
    assert_eq!(stderr(&output), "");
}

#[test]
fn what_was_preloaded_before_stays() {
    let dir = Dir::new();
    let other = dir.cc("other.so", "int other;\n", &["-shared", "-fPIC"]);
    let output = run(&dir)
        .env("LD_PRELOAD", &other)
        .args([
            "sh",
            "-c",
            "echo $LD_PRELOAD; grep -c -e other.so -e idle.so /proc/self/maps",
        ])
        .output()
        .unwrap();
    let text = stdout(&output);
    let list = format!("{}:{}/idle.so", other.display(), dir.0.display());
    assert_eq!(text.lines().next(), Some(list.as_str()));
    assert!(
        text.lines().nth(1).unwrap().parse::<u32>().unwrap() >= 2,
        "both are mapped"
    );
    let nested = run(&dir)
        .args([
            env!("CARGO_BIN_EXE_memlane"),
            "run",
            "sh",
            "-c",
            "echo $LD_PRELOAD",
        ])
        .output()
        .unwrap();
    assert_eq!(
        stdout(&nested),
        format!("{}/idle.so\n", dir.0.display()),
        "{}",
        stderr(&nested)
    );
}

#[test]
fn a_missing_library_is_125_with_advice_and_the_command_does_not_run() {
    let dir = Dir::new();
    let alone = dir.memlane();
    let output = clean(&alone)
        .args(["run", "--", "echo", "ran"])
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(125), String::new())
    );
    let text = stderr(&output);
    assert!(text.contains("cannot find libmemlane_preload.so"), "{text}");
    assert!(
        text.contains("MEMLANE_PRELOAD") && text.contains("cargo build"),
        "{text}"
    );

    let named = clean(&alone)
        .env("MEMLANE_PRELOAD", "/no/such.so")
        .args(["run", "true"])
        .output()
        .unwrap();
    assert_eq!(named.status.code(), Some(125));
    assert!(stderr(&named).contains("/no/such.so"), "{}", stderr(&named));
}

#[test]
fn an_installed_library_is_found_in_the_prefix() {
    let dir = Dir::new();
    let alone = dir.memlane();
    let lib = dir.0.join("lib/memlane");
    fs::create_dir_all(&lib).unwrap();
    fs::copy(dir.idle_library(), lib.join("libmemlane_preload.so")).unwrap();
    let output = clean(&alone)
        .args(["run", "sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    let expected = format!("{}/lib/memlane/libmemlane_preload.so\n", dir.0.display());
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
}

#[test]
fn a_library_in_a_folder_that_ld_preload_cannot_name_is_refused() {
    let dir = Dir::new();
    let odd = dir.0.join("a b.so");
    fs::copy(dir.idle_library(), &odd).unwrap();
    let output = memlane()
        .env("MEMLANE_PRELOAD", &odd)
        .args(["run", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("cannot be preloaded"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn disabled_means_untouched_even_without_a_library() {
    let dir = Dir::new();
    let output = clean(&dir.memlane())
        .env("MEMLANE_DISABLE", "1")
        .args([
            "run",
            "--ring",
            "64K",
            "sh",
            "-c",
            "echo [$LD_PRELOAD$MEMLANE_RING]; exit 3",
        ])
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(3), "[]\n".to_owned())
    );
    assert_eq!(stderr(&output), "");
}

#[test]
fn what_cannot_be_started_is_126_or_127_as_in_env() {
    let dir = Dir::new();
    let plain = dir.file("plain", "not a program", 0o644);
    let orphan = dir.file("orphan", "#!/no/such/interpreter\n", 0o755);
    let cases: [(&Path, i32); 4] = [
        (Path::new("no-such-command-anywhere"), 127),
        (&orphan, 127),
        (&plain, 126),
        (&dir.0, 126),
    ];
    for (command, code) in cases {
        // A folder of PATH that may not be searched would make 126 of "not found".
        let path = ("PATH", "/usr/bin:/bin");
        let ours = run(&dir).env(path.0, path.1).arg(command).output();
        let env = Command::new("env")
            .env(path.0, path.1)
            .arg(command)
            .output();
        let (ours, env) = (ours.unwrap(), env.unwrap());
        assert_eq!(ours.status.code(), Some(code), "{}", command.display());
        assert_eq!(
            ours.status.code(),
            env.status.code(),
            "{}",
            command.display()
        );
        assert_eq!(stdout(&ours), "");
        assert!(
            stderr(&ours).starts_with("memlane: cannot run "),
            "{}",
            stderr(&ours)
        );
    }
}

#[test]
fn a_wrong_flag_is_the_launchers_fault_not_the_commands() {
    let dir = Dir::new();
    for flags in [
        &["--ring", "100000"][..],
        &["--ring", "8K"],
        &["--spin", "fast"],
        &["--upgrade", "maybe"],
        &["--peer", "root"],
        &["--eid", "no spaces"],
        &["--bogus"],
    ] {
        let output = run(&dir)
            .args(flags)
            .args(["--", "echo", "ran"])
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(125), String::new()),
            "{flags:?}"
        );
        assert!(!stderr(&output).is_empty());
    }
    assert_eq!(
        run(&dir).output().unwrap().status.code(),
        Some(125),
        "no command"
    );
}

#[test]
fn flags_after_the_command_are_the_commands() {
    let dir = Dir::new();
    let output = run(&dir)
        .args(["echo", "--ring", "x", "--", "-h"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "--ring x -- -h\n");
}

#[test]
fn a_wrong_variable_is_told_by_the_launcher() {
    let dir = Dir::new();
    let output = run(&dir)
        .env("MEMLANE_RING", "64K")
        .args(["true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("MEMLANE_RING=64K is ignored"),
        "{}",
        stderr(&output)
    );
    let overridden = run(&dir)
        .env("MEMLANE_RING", "64K")
        .args(["--ring", "64K", "true"])
        .output()
        .unwrap();
    assert_eq!(stderr(&overridden), "");
}

#[test]
fn sigpipe_is_passed_on_as_it_was() {
    let dir = Dir::new();
    assert_eq!(
        sh(&dir, "kill -PIPE $$; echo alive").status.signal(),
        Some(13)
    );
    let me = env!("CARGO_BIN_EXE_memlane");
    let script = format!("trap '' PIPE; exec {me} run -- sh -c 'kill -PIPE $$; echo alive'");
    let output = clean(Path::new("sh"))
        .env("MEMLANE_PRELOAD", dir.idle_library())
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "alive\n");
}

/// What `run` says about a program, and what the program does.
fn verdict(dir: &Dir, program: &Path) -> (String, Option<i32>) {
    let output = run(dir).arg(program).output().unwrap();
    (stderr(&output), output.status.code())
}

fn says(program: &Path, why: &str) -> String {
    format!("memlane: {} stays on TCP: {why}\n", program.display())
}

const EXIT_42: &str = "int main(void) { return 42; }\n";

#[test]
fn an_ordinary_program_is_started_without_a_word() {
    let dir = Dir::new();
    let program = dir.cc("plain", EXIT_42, &[]);
    assert_eq!(verdict(&dir, &program), (String::new(), Some(42)));
}

#[test]
fn a_static_program_is_named_and_runs() {
    let dir = Dir::new();
    for (name, flag) in [("static", "-static"), ("static-pie", "-static-pie")] {
        let program = dir.cc(name, EXIT_42, &[flag]);
        assert_eq!(
            verdict(&dir, &program),
            (says(&program, "statically linked"), Some(42))
        );
    }
}

/// A program that looks to the launcher as if this Go release had built it.
fn like_go(dir: &Dir, name: &str, version: &str, flags: &[&str]) -> PathBuf {
    let record = format!(
        "__attribute__((section(\".go.buildinfo\"), aligned(16), used)) static struct {{ char head[16], rest[16], len, text[40]; }} \
         record = {{ \"\\xff Go buildinf:\\x08\\x02\", \"\", {}, \"{version}\" }};\n",
        version.len()
    );
    let note =
        "__attribute__((section(\".note.go.buildid\"), used)) static const char id[] = \"x\";\n";
    dir.cc(name, &format!("{note}{record}{EXIT_42}"), flags)
}

#[test]
fn a_go_program_that_stays_on_tcp_is_named_and_runs() {
    let dir = Dir::new();
    for (name, version, flag, why) in [
        (
            "old",
            "go1.19.13",
            "-O1",
            "a Go program built by go1.19.13, a release that memlane does not know",
        ),
        (
            "new",
            "devel go1.99",
            "-O1",
            "a Go program built by devel go1.99, a release that memlane does not know",
        ),
        (
            "alone",
            "go1.26.8",
            "-O1",
            "a Go program without libc's threads (CGO_ENABLED=0)",
        ),
        (
            "static",
            "go1.26.8",
            "-static",
            "a static Go program with C code in it",
        ),
    ] {
        let program = like_go(&dir, name, version, &[flag]);
        assert_eq!(verdict(&dir, &program), (says(&program, why), Some(42)));
    }
}

#[test]
fn a_program_for_another_libc_is_started_without_a_word() {
    let dir = Dir::new();
    let musl = dir.cc(
        "musl",
        EXIT_42,
        &["-Wl,--dynamic-linker=/lib/ld-musl-none.so.1"],
    );
    let (said, code) = verdict(&dir, &musl);
    assert!(!said.contains("stays on TCP"), "{said}");
    assert_eq!(code, Some(127), "there is no such loader");
}

#[test]
fn a_program_for_another_machine_is_named() {
    let dir = Dir::new();
    let mut bytes = fs::read(dir.cc("other", EXIT_42, &[])).unwrap();
    bytes[18] = 0xf3; // RISC-V
    bytes[19] = 0;
    let foreign = dir.file("foreign", bytes, 0o755);
    let (said, _) = verdict(&dir, &foreign);
    assert!(
        said.starts_with(&says(
            &foreign,
            "built for another machine (ELF machine 243)"
        )),
        "{said}"
    );
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let dir = Dir::new();
    let program = dir.cc("static", EXIT_42, &["-static"]);
    let script = dir.file("script", format!("#!{}\n", program.display()), 0o755);
    let why = format!("its interpreter {} is statically linked", program.display());
    assert_eq!(verdict(&dir, &script), (says(&script, &why), Some(42)));
    let ordinary = dir.file("ordinary", "#!/usr/bin/env sh\nexit 5\n", 0o755);
    assert_eq!(verdict(&dir, &ordinary), (String::new(), Some(5)));
}

#[test]
fn a_command_is_searched_in_path_before_it_is_judged() {
    let dir = Dir::new();
    let program = dir.cc("memlane-test-static", EXIT_42, &["-static"]);
    let path = format!("{}:{}", dir.0.display(), std::env::var("PATH").unwrap());
    let output = run(&dir)
        .env("PATH", path)
        .arg(program.file_name().unwrap())
        .output()
        .unwrap();
    assert_eq!(
        stderr(&output),
        says(Path::new("memlane-test-static"), "statically linked")
    );
}

#[test]
fn a_setuid_program_of_another_user_is_named() {
    let dir = Dir::new();
    let program = dir.cc("suid", EXIT_42, &[]);
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("needs root: nothing checked");
        return;
    }
    let mode = |bits| fs::set_permissions(&program, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o4755);
    assert_eq!(
        verdict(&dir, &program),
        (String::new(), Some(42)),
        "ours: nothing is raised"
    );
    chown(&program, Some(65534), None).unwrap();
    mode(0o4755);
    let said = says(&program, "setuid: the loader ignores LD_PRELOAD");
    assert_eq!(verdict(&dir, &program), (said, Some(42)));
    chown(&program, Some(0), Some(65534)).unwrap();
    mode(0o2755);
    let said = says(&program, "setgid: the loader ignores LD_PRELOAD");
    assert_eq!(verdict(&dir, &program), (said, Some(42)));
}
