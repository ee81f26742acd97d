//! The filters of system calls (seccomp) that Docker puts around containers, as its releases have them: podman applies them to
//! redis, to nginx and to Go programs of both kinds, and all of them get lanes.
//!
//! Needs what the tests with podman need, go, and the module proxy or cache, from which the filters come.

use std::path::{Path, PathBuf};
use std::process::Command;

use memlane_system::containers::{Engine, Lane, upgraded};
use memlane_system::harness::plain_only;
use memlane_system::real::lang::GoBuild;
use memlane_system::real::{Story, blob, note, program, sha256_of_bytes};

/// Modules, and where Docker's default filter lies in them: that of Debian 12's docker.io, and the newest.
const FILTERS: [(&str, &str); 2] = [
    (
        "github.com/docker/docker@v20.10.24+incompatible",
        "profiles/seccomp/default.json",
    ),
    ("github.com/moby/profiles/seccomp@v0.3.0", "default.json"),
];

/// The file, if the go command can get the module.
fn filter((module, path): (&str, &str)) -> Option<PathBuf> {
    let got = Command::new(program("go"))
        .args(["mod", "download", "-json", module])
        .current_dir("/")
        .output()
        .expect("go");
    let told: serde_json::Value = serde_json::from_slice(&got.stdout).unwrap_or_default();
    let file = told["Dir"].as_str().map(|dir| Path::new(dir).join(path));
    file.filter(|file| file.is_file())
}

/// An engine with a Go program of each kind, and what the story needs besides.
fn scene(name: &'static str, put: &[&str]) -> Option<(Story, Engine)> {
    let story = Story::new(name, &[&["go"], put].concat())?;
    if plain_only() {
        return None;
    }
    let engine = match Engine::start(&format!("memlane-test-{name}")) {
        Ok(engine) => engine,
        Err(why) => {
            note(&format!("SKIPPED {name}: {why}"));
            return None;
        }
    };
    for program in put {
        engine.put(&memlane_system::real::program(program));
    }
    for (name, build) in [("libc", GoBuild::USUAL), ("static", GoBuild::STATIC)] {
        engine.put(&build.build(&story, &["many.go"], name));
    }
    Some((story, engine))
}

/// Tells it under each filter: `tell` gets podman's option.
fn under_each_filter(name: &str, tell: impl Fn(&str)) {
    let mut told = 0;
    for of in FILTERS {
        let Some(file) = filter(of) else {
            note(&format!(
                "SKIPPED {name}: the go command could not get {}",
                of.0
            ));
            continue;
        };
        println!("{name} with {}", file.display());
        tell(&format!("--security-opt=seccomp={}", file.display()));
        told += 1;
    }
    assert!(told > 0, "no filter");
}

/// How a container starts the Go program. Only a program under memlane can put the library into the static one.
const STARTS: [&[&str]; 2] = [
    &["/bin/libc"],
    &["/bin/dash", "-c", "exec /bin/static \"$@\"", "dash"],
];

/// The program ends by a call of its own, so only its peer tells of the lane.
fn lanes_of(engine: &Engine, server: &str) -> u64 {
    let stopped = engine.podman(&["stop", "--time", "10", server]);
    stopped.expect("it ends");
    upgraded(&engine.podman_all(&["logs", server]).expect("it has run"))
}

#[test]
fn go_programs_and_redis_get_lanes_under_the_filters_of_docker() {
    let Some((_story, engine)) = scene("filters-go", &["dash"]) else {
        return;
    };
    under_each_filter("filters-go", |filter| {
        for start in STARTS {
            let server = engine.server(Lane::On, &["--env=MEMLANE_STATS_ON_EXIT=1", filter]);
            server.is_up();
            let command = [start, &["redis", "6379"]].concat();
            let said = engine.runs_beside_the_server(Lane::On, &[filter], &command);
            assert_eq!(said, "done\n", "{start:?}");
            assert!(lanes_of(&engine, engine.name()) > 0, "{start:?}");
        }
    });
}

const CONFIGURATION: &str =
    "daemon off; master_process off; pid /tmp/nginx.pid; error_log stderr error;
    events {}
    http { access_log off; sendfile on; server { listen 127.0.0.1:8080; root /site; } }
";

#[test]
fn nginx_gets_lanes_under_the_filters_of_docker() {
    let Some((_story, engine)) = scene("filters-nginx", &["dash", "nginx"]) else {
        return;
    };
    let root = PathBuf::from(engine.root());
    for folder in ["site", "var/lib/nginx", "var/log/nginx"] {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    let page = blob(7, 4 << 20);
    std::fs::write(root.join("site/page"), &page).expect("written");
    std::fs::write(root.join("etc/nginx.conf"), CONFIGURATION).expect("written");
    std::fs::write(root.join("etc/passwd"), "nobody:x:65534:65534::/:\n").expect("written");
    std::fs::write(root.join("etc/group"), "nogroup:x:65534:\n").expect("written");
    let told = format!("{0}\n{0}\n{0}\n", sha256_of_bytes(&page));
    let server_name = format!("{}-nginx", engine.name());
    under_each_filter("filters-nginx", |filter| {
        // Its network is redis's.
        let network = engine.server(Lane::Off, &[]);
        network.is_up();
        for start in STARTS {
            let nginx = ["/bin/nginx", "-c", "/etc/nginx.conf"];
            let options = ["--detach", "--name", &server_name, filter];
            engine.beside_the_server(Lane::On, &options, &nginx);
            let command = [start, &["fetch", "http://127.0.0.1:8080/page", "3"]].concat();
            let said = engine.runs_beside_the_server(Lane::On, &[filter], &command);
            let lanes = lanes_of(&engine, &server_name);
            let _ = engine.podman(&["rm", "--force", "--time", "0", &server_name]);
            assert_eq!(said, told, "{start:?}");
            assert!(lanes > 0, "{start:?}");
        }
    });
}
