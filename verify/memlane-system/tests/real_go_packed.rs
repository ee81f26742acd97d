//! Packed Go programs: the file is a small static program that unpacks the real one into memory and jumps there. No packer is
//! needed: `packed.c` is such a program.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memlane_system::harness::Built;
use memlane_system::real::lang::{EchoServer, GoBuild, Load, echo};
use memlane_system::real::{Done, SHORT_LIVED, Stage, Story, script};

const LOAD: Load = Load {
    connections: 2,
    rounds: 200,
    most: 3000,
};

fn stub(story: &Story) -> Vec<u8> {
    let stub = story.dir().join("stub");
    let status = Command::new("cc")
        .args(["-static", "-nostdlib", "-fno-stack-protector", "-O1"])
        .args(["-fcf-protection=none", "-Wl,-Ttext-segment=0x7e000000"])
        .arg("-o")
        .args([&stub, &script("packed.c")])
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cc");
    std::fs::read(stub).expect("the stub")
}

/// The stub, the program with its bytes inverted, and its length.
fn pack(story: &Story, program: &Path) -> PathBuf {
    let mut bytes = std::fs::read(program).expect("the program");
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    let mut file = stub(story);
    file.extend_from_slice(&bytes);
    file.extend_from_slice(&bytes.len().to_le_bytes());
    let packed = program.with_extension("packed");
    std::fs::write(&packed, file).expect("the packed program");
    let rights = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&packed, rights).expect("ours");
    packed
}

/// Runs it as a server and as its client. Its file must stay as it is.
fn talk(stage: &Stage, packed: &Path) -> (EchoServer, Done) {
    let with_role = |role| {
        let mut command = stage.command(packed);
        command.arg(role);
        command
    };
    let server = EchoServer::start(stage, with_role("server"), &[]);
    let done = echo(stage, with_role("client"), server.port, LOAD, &[]);
    (server, done)
}

/// What `memlane run` says; nothing without it.
fn must_say_static(stage: &Stage, done: &Done) {
    if stage.under_memlane() && Built::find().memlane.is_some() {
        let said = done.stderr();
        assert!(said.contains("statically linked"), "{said}");
    }
}

#[test]
fn a_packed_static_program_stays_on_tcp() {
    let Some(story) = Story::new("go-packed-static", &["go", "cc"]) else {
        return;
    };
    let packed = pack(&story, &GoBuild::STATIC.build(&story, &["echo.go"], "echo"));
    let before = std::fs::read(&packed).expect("the file");
    story.in_each_mode(|stage| {
        let (server, done) = talk(stage, &packed);
        must_say_static(stage, &done);
        done.lane.must_stay_on_tcp(&[]);
        server.finish().must_stay_on_tcp(&[]);
    });
    assert!(std::fs::read(&packed).is_ok_and(|file| file == before));
}

/// The stub maps the dynamic loader, too, as UPX's does.
#[test]
fn a_packed_program_with_libc_gets_the_lane() {
    let Some(story) = Story::new("go-packed-libc", &["go", "cc"]) else {
        return;
    };
    let packed = pack(&story, &GoBuild::USUAL.build(&story, &["echo.go"], "echo"));
    let before = std::fs::read(&packed).expect("the file");
    story.in_each_mode(|stage| {
        let (server, done) = talk(stage, &packed);
        done.lane.must_use_ring(&[SHORT_LIVED]);
        server.finish().must_use_ring(&[SHORT_LIVED]);
    });
    assert!(std::fs::read(&packed).is_ok_and(|file| file == before));
}
