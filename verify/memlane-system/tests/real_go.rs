//! Go programs: those linked with libc and static ones get the lane, all others stay on TCP and say why.

use std::cell::OnceCell;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memlane_system::harness::{Built, is_root};
use memlane_system::real::http::{Nginx, PEER_OUTSIDE, Site};
use memlane_system::real::kv::Redis;
use memlane_system::real::lang::{EchoServer, GoBuild, Load, echo, go_build, python_echo};
use memlane_system::real::{
    Done, Mode, Reason, SHORT_LIVED, Stage, Story, free_port, note, proc, wait_listening,
    wait_until,
};

/// Each connection makes more than the 80 calls after which a peer counts as one without memlane.
const LOAD: Load = Load {
    connections: 10,
    rounds: 100,
    most: 60_000,
};
const LIMIT: Duration = Duration::from_secs(90);

/// Every release from the oldest that is asked about to the newest, and whether the library knows it.
const RELEASES: &[(&str, bool)] = &[
    ("go1.18.10", false),
    ("go1.19.13", false),
    ("go1.20.14", true),
    ("go1.21.13", true),
    ("go1.22.12", true),
    ("go1.23.12", true),
    ("go1.24.11", true),
    ("go1.25.5", true),
    ("go1.26.8", true),
    ("go1.27.0", true),
];

fn with_role(stage: &Stage, program: &Path, role: &str) -> Command {
    let mut command = stage.command(program);
    command.arg(role);
    command
}

/// Runs the program as an echo server and as its client.
fn echo_with_itself(stage: &Stage, program: &Path, load: Load) -> (EchoServer, Done) {
    let server = EchoServer::start(stage, with_role(stage, program, "server"), &[]);
    let done = echo(
        stage,
        with_role(stage, program, "client"),
        server.port,
        load,
        &[],
    );
    (server, done)
}

/// What `memlane run` says when it starts the program.
fn said(done: &Done, stage: &Stage) -> Option<String> {
    (stage.under_memlane() && Built::find().memlane.is_some()).then(|| done.stderr())
}

/// The two ways in which Go links a program.
const LINKED: [(&str, GoBuild<'static>); 2] =
    [("libc", GoBuild::USUAL), ("static", GoBuild::STATIC)];

/// Tells a story of a program that is linked with libc, and again of a static one. `build` compiles it.
fn of_both(name: &str, tools: &[&str], tell: impl Fn(&Story, GoBuild<'static>)) {
    for (how, build) in LINKED {
        if let Some(story) = Story::new(&format!("{name}-{how}"), tools) {
            tell(&story, build);
        }
    }
}

#[test]
fn a_go_program_gets_the_lane_with_go_and_with_python() {
    of_both("go-echo", &["go", "python3"], |story, build| {
        let program = build.build(story, &["echo.go"], "echo");
        story.in_each_mode(|stage| {
            let (server, done) = echo_with_itself(stage, &program, LOAD);
            done.lane.must_use_ring(&[SHORT_LIVED]);
            if let Some(said) = said(&done, stage) {
                assert_eq!(
                    said, "",
                    "a program that gets the lane is started without a word"
                );
            }
            let done = python_echo(stage, server.port, LOAD, &[]);
            done.lane.must_use_ring(&[SHORT_LIVED]);
            server.finish().must_use_ring(&[SHORT_LIVED]);
            let server = EchoServer::python(stage, "thread", &[]);
            let client = with_role(stage, &program, "client");
            echo(stage, client, server.port, LOAD, &[])
                .lane
                .must_use_ring(&[SHORT_LIVED]);
            server.finish().must_use_ring(&[SHORT_LIVED]);
        });
    });
}

/// A small message there and back on one connection: the lane must carry nearly all of it.
#[test]
fn small_messages_of_go_programs_take_the_lane() {
    of_both("go-small", &["go"], |story, build| {
        let program = build.build(story, &["echo.go"], "echo");
        let load = Load {
            connections: 1,
            rounds: 5000,
            most: 100,
        };
        story.in_each_mode(|stage| {
            let (server, done) = echo_with_itself(stage, &program, load);
            // 5,000 messages of 50 bytes on average, both ways: half a megabyte.
            done.lane.must_use_ring_for(200_000, &[SHORT_LIVED]);
            server.finish().must_use_ring_for(200_000, &[SHORT_LIVED]);
        });
    });
}

/// Runs parts of `many.go` against an echo server, with one processor and with many.
fn parts(name: &str, build: GoBuild<'_>, parts: &[&str], allowed: &[&[Reason]]) {
    parts_of(name, build, &["many.go"], parts, allowed);
}

fn parts_of(
    name: &str,
    build: GoBuild<'_>,
    sources: &[&str],
    parts: &[&str],
    allowed: &[&[Reason]],
) {
    let Some(story) = Story::new(name, &["go"]) else {
        return;
    };
    let server_program = go_build(&story, "echo.go", true);
    let program = build.build(&story, sources, "many");
    story.in_each_mode(|stage| {
        for part in parts {
            for processors in ["1", "8"] {
                let server =
                    EchoServer::start(stage, with_role(stage, &server_program, "server"), &[]);
                let mut command = with_role(stage, &program, part);
                command
                    .arg(server.port.to_string())
                    .env("GOMAXPROCS", processors);
                let done = stage.run(part, command, LIMIT);
                assert_eq!(done.stdout(), "done\n", "{part}");
                done.lane.must_use_ring(&[&[SHORT_LIVED], allowed].concat());
                server
                    .finish()
                    .must_use_ring(&[&[SHORT_LIVED], allowed].concat());
            }
        }
    });
}

#[test]
fn large_messages_deadlines_and_half_closes_are_as_without_memlane() {
    for (how, build) in LINKED {
        parts(
            &format!("go-life-{how}"),
            build,
            &["plain", "deadlines"],
            &[],
        );
    }
}

#[test]
fn copies_of_descriptors_and_children_are_as_without_memlane() {
    // A connection and its copies are in Go's one epoll set together.
    let shared = &[Reason::PASSED_ON, Reason::SHARED_FD, Reason::WAIT_KIND];
    for (how, build) in LINKED {
        let name = format!("go-files-{how}");
        parts(
            &name,
            build,
            &["files", "children", "again", "unread"],
            &[shared],
        );
    }
}

#[test]
fn signals_preemption_profiles_collections_and_ending_threads_disturb_nothing() {
    for (how, build) in LINKED {
        let name = format!("go-signals-{how}");
        parts(&name, build, &["signals", "threads"], &[]);
    }
}

#[test]
fn go_and_c_code_of_one_program_use_one_connection() {
    let sources = ["many.go", "cdoor.go"];
    parts_of("go-both", GoBuild::USUAL, &sources, &["both", "libc"], &[]);
}

#[test]
fn a_program_that_opens_libraries_but_no_plugins_is_served() {
    let sources = ["many.go", "dlopen.go"];
    parts_of(
        "go-dlopen",
        GoBuild::USUAL,
        &sources,
        &["files"],
        &[&[Reason::WAIT_KIND]],
    );
}

#[test]
fn a_program_built_for_the_race_detector_is_served() {
    let race = GoBuild {
        flags: &["-race"],
        ..GoBuild::USUAL
    };
    parts("go-race", race, &["plain", "signals"], &[]);
}

#[test]
fn position_independent_stripped_and_externally_linked_programs_are_served() {
    let bare = GoBuild {
        flags: &["-buildmode=pie", "-ldflags=-s -w -buildid="],
        ..GoBuild::USUAL
    };
    parts("go-bare", bare, &["deadlines"], &[]);
    let external = GoBuild {
        flags: &["-ldflags=-linkmode=external"],
        ..GoBuild::USUAL
    };
    parts("go-external", external, &["deadlines"], &[]);
}

/// io.Copy between two connections, which splices where the kernel lets it.
#[test]
fn a_relay_keeps_both_its_connections_on_the_lane() {
    of_both("go-relay", &["go"], |story, build| {
        let echo_program = build.build(story, &["echo.go"], "echo");
        let program = build.build(story, &["many.go"], "many");
        story.in_each_mode(|stage| {
            let server = EchoServer::start(stage, with_role(stage, &echo_program, "server"), &[]);
            let port = free_port();
            let mut relay = with_role(stage, &program, "relay");
            relay.args([port.to_string(), server.port.to_string()]);
            let relay = stage.start("relay", relay);
            wait_listening(port, "the relay");
            let mut client = with_role(stage, &program, "plain");
            client.arg(port.to_string());
            let done = stage.run("client", client, LIMIT);
            assert_eq!(done.stdout(), "done\n");
            done.lane.must_use_ring(&[SHORT_LIVED]);
            // 4 connections of 200 messages of 50 KB on average, in and out on both sides.
            relay.lane().must_use_ring_for(80_000_000, &[SHORT_LIVED]);
            relay.stop();
            server.finish().must_use_ring(&[SHORT_LIVED]);
        });
    });
}

#[test]
fn what_a_program_has_sent_arrives_after_it_has_left() {
    of_both("go-leave", &["go"], |story, build| {
        let program = build.build(story, &["many.go"], "many");
        story.in_each_mode(|stage| {
            let sink = EchoServer::start(stage, with_role(stage, &program, "sink"), &[]);
            for _ in 0..9 {
                let mut leaves = with_role(stage, &program, "leave");
                leaves.arg(sink.port.to_string());
                let done = stage.run("leave", leaves, LIMIT);
                done.lane.must_use_ring(&[SHORT_LIVED]);
            }
            let told = "700000 <nil>\n".repeat(9);
            wait_until("the rest has come", LIMIT, || {
                sink.proc.stdout().len() >= told.len()
            });
            assert_eq!(sink.proc.stdout(), told);
            sink.finish().must_use_ring(&[SHORT_LIVED]);
        });
    });
}

#[test]
fn net_http_serves_and_gets_bodies_files_and_sums() {
    of_both("go-http", &["go"], |story, build| {
        let program = build.build(story, &["many.go"], "many");
        story.in_each_mode(|stage| {
            let port = free_port();
            let start = |role: &str| {
                let mut command = with_role(stage, &program, role);
                command.arg(port.to_string());
                command
            };
            let server = stage.start("web", start("web"));
            wait_listening(port, "the web server");
            let done = stage.run("ask", start("ask"), LIMIT);
            assert_eq!(done.stdout(), "done\n");
            done.lane.must_use_ring_for(10_000_000, &[SHORT_LIVED]);
            server.lane().must_use_ring_for(10_000_000, &[SHORT_LIVED]);
            server.stop();
        });
    });
}

#[test]
fn a_server_that_is_killed_and_started_again_is_found_again() {
    of_both("go-killed", &["go"], |story, build| {
        let program = build.build(story, &["echo.go"], "echo");
        story.in_each_mode(|stage| {
            for _ in 0..3 {
                let (server, done) = echo_with_itself(stage, &program, LOAD);
                done.lane.must_use_ring(&[SHORT_LIVED]);
                let mut busy = with_role(stage, &program, "client");
                busy.arg(server.port.to_string())
                    .args(["4", "1000000", "1000"]);
                let busy = stage.start("busy", busy);
                std::thread::sleep(Duration::from_millis(300));
                server.proc.kill();
                let done = busy.wait(LIMIT);
                assert!(!done.status.success(), "its server was killed");
            }
        });
    });
}

#[test]
fn go_talks_to_nginx_and_to_redis() {
    of_both(
        "go-c-peers",
        &["go", "nginx", "redis-server", "redis-cli"],
        |story, build| {
            let program = build.build(story, &["many.go"], "many");
            let site = Site::new(story);
            story.in_each_mode(|stage| {
                let nginx = Nginx::start(stage, &site);
                let mut fetch = with_role(stage, &program, "fetch");
                fetch.arg(nginx.url("big.bin")).arg("2");
                let done = stage.run("fetch", fetch, LIMIT);
                assert_eq!(done.stdout(), format!("{0}\n{0}\n", site.big_hash));
                done.lane.must_use_ring(&[SHORT_LIVED]);
                nginx.finish().must_use_ring(&[SHORT_LIVED]);

                let redis = Redis::start(stage);
                let mut store = with_role(stage, &program, "redis");
                store.arg(redis.port.to_string());
                let done = stage.run("store", store, LIMIT);
                assert_eq!(done.stdout(), "done\n");
                done.lane.must_use_ring(&[SHORT_LIVED]);
                redis.finish().must_use_ring(&[SHORT_LIVED]);
            });
        },
    );
}

#[test]
fn each_known_release_gets_the_lane_and_no_other() {
    let Some(story) = Story::new("go-releases", &["go"]) else {
        return;
    };
    let load = Load {
        connections: 4,
        rounds: 200,
        most: 3000,
    };
    let mut tested = 0;
    for (release, known) in RELEASES {
        let build = GoBuild {
            release: Some(release),
            ..GoBuild::USUAL
        };
        if !build.is_there() {
            note(&format!(
                "SKIPPED {release}: the go command could not get it"
            ));
            continue;
        }
        tested += 1;
        for cgo in [true, false] {
            let build = GoBuild { cgo, ..build };
            let program = build.build(&story, &["echo.go"], release);
            story.in_each_mode(|stage| {
                let (server, done) = echo_with_itself(stage, &program, load);
                if *known {
                    done.lane.must_use_ring(&[SHORT_LIVED]);
                    server.finish().must_use_ring(&[SHORT_LIVED]);
                    return;
                }
                done.lane.must_stay_on_tcp(&[]);
                server.finish().must_stay_on_tcp(&[]);
                if let Some(said) = said(&done, stage) {
                    assert!(
                        said.contains("release that memlane does not know"),
                        "{said}"
                    );
                }
            });
        }
    }
    assert!(tested > 0, "not even the release that is installed");
}

/// Runs it under memlane; it must work, by TCP, and `memlane run` must say `why`.
fn must_stay_on_tcp(story: &Story, program: &Path, why: &str) {
    let load = Load {
        connections: 2,
        rounds: 200,
        most: 3000,
    };
    story.in_each_mode(|stage| {
        let (server, done) = echo_with_itself(stage, program, load);
        done.lane.must_stay_on_tcp(&[]);
        server.finish().must_stay_on_tcp(&[]);
        if let Some(said) = said(&done, stage) {
            assert!(said.contains(why), "{said}");
        }
    });
}

#[test]
fn a_program_that_has_been_changed_stays_on_tcp() {
    let Some(story) = Story::new("go-changed", &["go"]) else {
        return;
    };
    let program = go_build(&story, "echo.go", true);
    let mut bytes = std::fs::read(&program).expect("the program");
    let head = b"\x49\x89\xf2\x48\x89\xfa\x48\x89\xce\x48\x89\xdf\x0f\x05";
    let places: Vec<usize> = (0..bytes.len() - head.len())
        .filter(|&at| bytes[at..].starts_with(head))
        .collect();
    assert_eq!(places.len(), 1, "not the function that is looked for");
    // The first two moves in another order: it means the same.
    let first = &mut bytes[places[0]..places[0] + 6];
    first.copy_from_slice(b"\x48\x89\xfa\x49\x89\xf2");
    std::fs::write(&program, bytes).expect("the changed program");
    must_stay_on_tcp(
        &story,
        &program,
        "without its release's function for system calls",
    );
}

#[test]
fn of_two_functions_for_system_calls_the_runtimes_leads_to_the_lane() {
    of_both("go-twice", &["go"], |story, build| {
        let program = build.build(story, &["echo.go", "twice.go", "twice.s"], "twice");
        story.in_each_mode(|stage| {
            let (server, done) = echo_with_itself(stage, &program, LOAD);
            done.lane.must_use_ring(&[SHORT_LIVED]);
            server.finish().must_use_ring(&[SHORT_LIVED]);
        });
    });
}

#[test]
fn a_program_that_can_load_plugins_or_has_threads_of_its_own_stays_on_tcp() {
    let Some(story) = Story::new("go-others", &["go"]) else {
        return;
    };
    let program = GoBuild::USUAL.build(&story, &["echo.go", "plugins.go"], "plugins");
    must_stay_on_tcp(&story, &program, "can load plugins");
    let own = GoBuild {
        cgo: false,
        flags: &["-buildmode=pie"],
        ..GoBuild::USUAL
    };
    let program = own.build(&story, &["echo.go"], "own-threads");
    must_stay_on_tcp(&story, &program, "without libc's threads");
}

/// strace stops each thread at each of its system calls for a while, and leaves.
#[test]
fn a_tracer_that_comes_and_goes_disturbs_nothing() {
    of_both("go-traced", &["go", "strace"], |story, build| {
        let program = build.build(story, &["echo.go"], "echo");
        story.in_each_mode(|stage| {
            let server = EchoServer::start(stage, with_role(stage, &program, "server"), &[]);
            let mut client = with_role(stage, &program, "client");
            client.args([&server.port.to_string(), "4", "20000", "1000"]);
            let client = stage.start("client", client);
            std::thread::sleep(Duration::from_millis(100));
            for traced in [client.program_id(), server.proc.program_id()] {
                let mut strace = Command::new("strace")
                    .args(["-f", "-qq", "-o", "/dev/null", "-p", &traced.to_string()])
                    .spawn()
                    .expect("strace");
                std::thread::sleep(Duration::from_millis(200));
                proc::send("INT", &[strace.id()]);
                strace.wait().expect("strace ends");
            }
            let done = client.wait(LIMIT).success();
            done.lane.must_use_ring(&[SHORT_LIVED]);
            server.finish().must_use_ring(&[SHORT_LIVED]);
        });
    });
}

/// The shortest of many starts, with and without memlane: what else the machine does makes them longer.
#[test]
fn a_static_program_begins_less_than_15_ms_later() {
    let Some(story) = Story::new("go-start", &["go"]) else {
        return;
    };
    let Some(memlane) = Built::find().memlane else {
        return;
    };
    let program = GoBuild::STATIC.build(&story, &["start.go"], "start");
    let took = |mut command: Command| {
        let began = std::time::Instant::now();
        let out = command.output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "begun\n");
        began.elapsed()
    };
    let (mut plain, mut entered) = (LIMIT, LIMIT);
    let limit = Duration::from_millis(15);
    for turn in 0..200 {
        plain = plain.min(took(Command::new(&program)));
        let mut run = Command::new(&memlane);
        run.arg("run").arg(&program);
        entered = entered.min(took(run));
        if turn >= 20 && entered < plain + limit {
            break;
        }
    }
    note(&format!(
        "a static Go program: {plain:?} plain, {entered:?} by memlane run"
    ));
    assert!(entered < plain + limit);
}

/// Runs it after a filter that refuses every `ptrace`, as a container's might.
const WITHOUT_PTRACE: &str = "import ctypes, os, struct, sys\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 101), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]\n\
    code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))\n\
    filter = struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code))\n\
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0):\n\
    \x20   sys.exit('prctl: %d' % ctypes.get_errno())\n\
    os.execv(sys.argv[1], sys.argv[1:])\n";

#[test]
fn a_static_program_works_where_no_process_may_be_traced() {
    let Some(story) = Story::new("go-no-ptrace", &["go", "python3"]) else {
        return;
    };
    let program = GoBuild::STATIC.build(&story, &["echo.go"], "echo");
    let load = Load {
        connections: 2,
        rounds: 200,
        most: 3000,
    };
    story.in_each_mode(|stage| {
        let run = |role: &str| {
            let mut command = stage.command("python3");
            command.args(["-c", WITHOUT_PTRACE]).arg(&program).arg(role);
            command
        };
        let server = EchoServer::start(stage, run("server"), &[]);
        let done = echo(stage, run("client"), server.port, load, &[]);
        done.lane.must_stay_on_tcp(&[]);
        server.finish().must_stay_on_tcp(&[]);
    });
    let Some(memlane) = Built::find().memlane else {
        return;
    };
    let mut run = Command::new("python3");
    run.args(["-c", WITHOUT_PTRACE]).arg(memlane).arg("run");
    let out = run.arg(&program).output().expect("python3");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("does not let memlane into it"), "{said}");
}

/// A library that may not be executed, on a file system that is mounted `noexec`.
#[test]
fn a_static_program_works_where_the_library_may_not_be_executed() {
    let Some(story) = Story::new("go-noexec", &["go"]) else {
        return;
    };
    let Some(memlane) = Built::find().memlane else {
        return;
    };
    let program = GoBuild::STATIC.build(&story, &["echo.go"], "echo");
    let dir = story.dir().join("noexec");
    std::fs::create_dir_all(&dir).expect("a directory");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "noexec", "none"])
        .arg(&dir)
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        note("SKIPPED go-noexec: only root may mount");
        return;
    }
    let library = dir.join("libmemlane_preload.so");
    std::fs::copy(Built::find().preload, &library).expect("a copy");
    let mut run = Command::new(memlane);
    run.env("MEMLANE_PRELOAD", &library).arg("run");
    let out = run.arg(&program).output().expect("memlane");
    let _ = Command::new("umount").arg(&dir).status();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("does not let memlane into it"), "{said}");
    assert!(
        said.contains("index out of range"),
        "it did not begin: {said}"
    );
}

#[test]
fn a_static_program_that_gains_rights_or_has_c_code_or_is_changed_stays_on_tcp() {
    let Some(story) = Story::new("go-static-others", &["go"]) else {
        return;
    };
    let program = GoBuild::STATIC.build(&story, &["echo.go"], "echo");
    let privileged = story.dir().join("privileged");
    std::fs::copy(&program, &privileged).expect("a copy");
    let rights = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&privileged, rights).expect("set-user-ID");
    must_stay_on_tcp(&story, &privileged, "gains rights");
    let with_c = GoBuild {
        flags: &["-ldflags=-linkmode=external -extldflags=-static"],
        ..GoBuild::USUAL
    };
    let with_c = with_c.build(&story, &["echo.go"], "with-c");
    must_stay_on_tcp(&story, &with_c, "with C code in it");
}

#[test]
fn a_static_program_that_is_stripped_is_entered_and_its_file_stays_as_it_is() {
    let Some(story) = Story::new("go-static-bare", &["go"]) else {
        return;
    };
    let bare = GoBuild {
        flags: &["-trimpath", "-ldflags=-s -w -buildid="],
        ..GoBuild::STATIC
    };
    let program = bare.build(&story, &["echo.go"], "bare");
    let before = std::fs::read(&program).expect("the program");
    story.in_each_mode(|stage| {
        let (server, done) = echo_with_itself(stage, &program, LOAD);
        done.lane.must_use_ring(&[SHORT_LIVED]);
        server.finish().must_use_ring(&[SHORT_LIVED]);
    });
    assert!(std::fs::read(&program).expect("the program") == before);
}

/// Its C code calls libc, where the library sees it. But Go code may use the same descriptors.
#[test]
fn c_code_of_a_go_program_that_is_not_served_says_why_it_stays_on_tcp() {
    let Some(story) = Story::new("go-c-code", &["go", "python3"]) else {
        return;
    };
    let sources = ["many.go", "cdoor.go", "plugins.go"];
    let program = GoBuild::USUAL.build(&story, &sources, "many");
    story.in_each_mode(|stage| {
        let server = EchoServer::python(stage, "thread", &[]);
        let mut command = with_role(stage, &program, "libc");
        command.arg(server.port.to_string());
        let done = stage.run("libc", command, LIMIT);
        done.lane.must_stay_on_tcp(&[&[Reason::GO], SHORT_LIVED]);
        done.lane.must_say(Reason::GO);
        server
            .finish()
            .must_stay_on_tcp(&[PEER_OUTSIDE, SHORT_LIVED, &[Reason::TIMEOUT_AL]]);
    });
}

/// The kernel refuses memory that is writable and executable (`PR_SET_MDWE`), as services that are locked down ask for.
#[test]
fn a_program_whose_code_may_not_be_changed_stays_on_tcp() {
    let Some(story) = Story::new("go-locked", &["go", "python3"]) else {
        return;
    };
    let program = go_build(&story, "echo.go", true);
    let locked = "import ctypes, os, sys\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        if libc.prctl(65, 1, 0, 0, 0) != 0: sys.exit('prctl: %d' % ctypes.get_errno())\n\
        os.execv(sys.argv[1], sys.argv[1:])\n";
    let probe = Command::new("python3")
        .args(["-c", locked, "/bin/true"])
        .output();
    if !probe.is_ok_and(|out| out.status.success()) {
        note("SKIPPED go-locked: the kernel has no PR_SET_MDWE (Linux 6.3)");
        return;
    }
    let load = Load {
        connections: 2,
        rounds: 200,
        most: 3000,
    };
    story.in_each_mode(|stage| {
        let run = |role: &str| {
            let mut command = stage.command("python3");
            command.args(["-c", locked]).arg(&program).arg(role);
            command
        };
        let server = EchoServer::start(stage, run("server"), &[]);
        let done = echo(stage, run("client"), server.port, load, &[]);
        done.lane.must_stay_on_tcp(&[]);
        server.finish().must_stay_on_tcp(&[]);
        if stage.under_memlane() {
            let said = done.stderr();
            assert!(
                said.contains("does not allow memlane to change this Go program's code"),
                "{said}"
            );
        }
    });
}

/// What a program that is held in memory is started by: packers that unpack themselves do so.
const FROM_MEMORY: &str = "import os, sys\n\
    held = os.memfd_create('packed')\n\
    os.write(held, open(sys.argv[1], 'rb').read())\n\
    os.execve(held, sys.argv[1:], os.environ)\n";

/// Runs a command with the directory `$1` mounted again, with the option `$2`.
const MOUNTED: &str = r#"mount --bind "$1" "$1" && mount -o "remount,bind,$2" "$1" || exit 9
    shift 2; exec "$@""#;

/// A command that runs the program from a mount of its directory that has this option.
fn mounted(stage: &Stage, program: &Path, option: &str, role: &str) -> Command {
    let folder = program.parent().expect("a directory");
    let mut command = stage.command("unshare");
    command
        .args(["--mount", "sh", "-c", MOUNTED, "sh"])
        .arg(folder)
        .arg(option)
        .arg(program)
        .arg(role);
    command
}

/// A little, with a server and a client that are started by such a command.
fn echo_by(stage: &Stage, start: impl Fn(&str) -> Command) -> (EchoServer, Done) {
    let load = Load {
        connections: 2,
        rounds: 200,
        most: 3000,
    };
    let server = EchoServer::start(stage, start("server"), &[]);
    let done = echo(stage, start("client"), server.port, load, &[]);
    (server, done)
}

/// Without section headers, as packers leave programs.
fn without_sections(program: &Path) {
    // e_shoff, and e_shnum with e_shstrndx, in the header of a 64-bit file (elf.h).
    let mut bytes = std::fs::read(program).expect("the program");
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    std::fs::write(program, bytes).expect("the changed program");
}

#[test]
fn a_program_gets_the_lane_from_wherever_it_is_started_and_its_file_stays_as_it_is() {
    let Some(story) = Story::new("go-places", &["go", "python3", "unshare"]) else {
        return;
    };
    let program = go_build(&story, "echo.go", true);
    without_sections(&program);
    let file = std::fs::read(&program).expect("the program");
    story.in_each_mode(|stage| {
        let mut started = vec![
            echo_by(stage, |role| with_role(stage, &program, role)),
            echo_by(stage, |role| {
                let mut command = stage.command("python3");
                command.args(["-c", FROM_MEMORY]).arg(&program).arg(role);
                command
            }),
        ];
        if is_root() {
            started.push(echo_by(stage, |role| mounted(stage, &program, "ro", role)));
        }
        for (server, done) in started {
            done.lane.must_use_ring(&[SHORT_LIVED]);
            server.finish().must_use_ring(&[SHORT_LIVED]);
        }
    });
    assert!(
        std::fs::read(&program).is_ok_and(|now| now == file),
        "the program's file has been changed"
    );
}

/// Where the kernel starts no program, memlane starts none either.
#[test]
fn a_program_on_a_mount_without_exec_fails_as_without_memlane() {
    let Some(story) = Story::new("go-noexec", &["go", "unshare"]) else {
        return;
    };
    if !is_root() {
        note("SKIPPED go-noexec: not root");
        return;
    }
    let program = go_build(&story, "echo.go", true);
    let ends = OnceCell::new();
    story.in_each_mode(|stage| {
        let command = mounted(stage, &program, "noexec", "server");
        let done = stage.start("noexec", command).wait(LIMIT);
        let end = (done.status.code(), done.stderr());
        assert_eq!(end.0, Some(126), "{}", end.1);
        assert_eq!(&end, ends.get_or_init(|| end.clone()));
    });
}

#[test]
fn a_program_that_gains_rights_stays_on_tcp() {
    const NOBODY: u32 = 65534;
    let Some(story) = Story::new("go-setuid", &["go"]) else {
        return;
    };
    if !is_root() {
        note("SKIPPED go-setuid: not root");
        return;
    }
    let program = go_build(&story, "echo.go", true);
    let rights = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&program, rights).expect("ours");
    story.in_each_mode(|stage| {
        let (server, done) = echo_by(stage, |role| {
            stage.placed(with_role(stage, &program, role), Some((NOBODY, NOBODY)))
        });
        done.lane.must_stay_on_tcp(&[]);
        server.finish().must_stay_on_tcp(&[]);
        if let Some(said) = said(&done, stage) {
            assert!(
                said.contains("setuid: the loader ignores LD_PRELOAD"),
                "{said}"
            );
        }
    });
}

/// Runs Go's own tests of a package: each must have the same result as without memlane.
fn go_tests(name: &str, package: &str, more: &[&str]) {
    let Some(story) = Story::new(name, &["go"]) else {
        return;
    };
    let tests = story.dir().join("package.test");
    let go = memlane_system::real::program("go");
    let root = Command::new(&go).args(["env", "GOROOT"]).output();
    let root = String::from_utf8(root.expect("go env").stdout).expect("a path");
    let source = Path::new(root.trim()).join("src").join(package);
    let mut build = Command::new(&go);
    build.args(["test", "-c", "-o"]).arg(&tests).arg(package);
    build.env("CGO_ENABLED", "1").env("GOFLAGS", "");
    build.env("GOTOOLCHAIN", "local").current_dir(&source);
    assert!(
        build.status().is_ok_and(|status| status.success()),
        "it does not compile"
    );
    let results = OnceCell::new();
    story.in_each_mode(|stage| {
        let mut command = stage.command(&tests);
        command
            .args(["-test.short", "-test.v"])
            .args(more)
            .current_dir(&source);
        let done = stage.start("tests", command).wait(Duration::from_secs(300));
        let text = done.stdout();
        let lines = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("--- "));
        let mut verdicts: Vec<&str> = lines.filter_map(|line| line.split(" (").next()).collect();
        verdicts.sort_unstable();
        assert!(verdicts.len() > 100, "{text}");
        let verdicts = verdicts.join("\n");
        assert_eq!(&verdicts, results.get_or_init(|| verdicts.clone()));
        // In mode auto a busy machine may end every connection before its lane is due.
        if stage.mode == Mode::Eager {
            assert!(done.lane.ring_bytes() > 0, "nothing took the lane");
        }
    });
}

/// All but one, which looks at whether the kernel spliced.
#[test]
fn the_tests_of_package_net_have_the_same_results() {
    go_tests("go-test-net", "net", &["-test.skip=^TestSplice$"]);
}

#[test]
fn the_tests_of_package_net_http_have_the_same_results() {
    go_tests("go-test-http", "net/http", &[]);
}

#[test]
fn the_tests_of_package_crypto_tls_have_the_same_results() {
    go_tests("go-test-tls", "crypto/tls", &[]);
}
