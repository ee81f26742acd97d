//! `memlane serve --tls` and `memlane map --tls`: encrypted volumes; who is refused, how fast, and with which exit
//! code.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use memlane_system::blocks::authority::Authority;
use memlane_system::blocks::fio::Verifying;
use memlane_system::blocks::{has, memlane, must, skip};
use memlane_system::harness::{Running, TempDir, is_root};

const LIMIT: Duration = Duration::from_secs(60);
/// What is refused is refused at once, not when `--wait` is over.
const SOON: Duration = Duration::from_secs(8);

/// A server on a port of its own.
struct Server {
    running: Running,
    name: String,
    port: u16,
}

impl Server {
    fn start(name: &str, root: &Path, port: u16, more: &[&str]) -> Server {
        let mut command = Command::new(memlane());
        command.args(["serve", "--name", name, "--root"]).arg(root);
        command.args(["--listen", &format!("tcp://127.0.0.1:{port}")]);
        command.args(["--listen", &format!("local:{name}")]);
        command.args(more);
        let mut running = Running::start(command);
        let begin = Instant::now();
        loop {
            let said = running.stderr();
            if let Some((_, rest)) = said.split_once("tcp://127.0.0.1:") {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                return Server {
                    running,
                    name: name.to_owned(),
                    port: digits.parse().expect("a port"),
                };
            }
            assert!(running.is_running() && begin.elapsed() < LIMIT, "{said}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

struct World {
    dir: TempDir,
    authority: Authority,
    name: String,
}

impl World {
    fn new(label: &str) -> Option<World> {
        if !has("openssl") {
            skip(label, "no openssl: apt-get install openssl");
            return None;
        }
        let dir = TempDir::new(label);
        let folder = dir.path().join("root/tenants/one");
        std::fs::create_dir_all(&folder).expect("the root");
        for disk in [dir.path().join("root/disk"), folder.join("disk")] {
            let file = std::fs::File::create(disk).expect("a file");
            file.set_len(64 << 20).expect("its size");
        }
        Some(World {
            dir,
            authority: Authority::new(label),
            name: format!("{label}-{}", std::process::id()),
        })
    }

    fn serve(&self, more: &[&str]) -> Server {
        Server::start(&self.name, &self.dir.path().join("root"), 0, more)
    }

    fn socket(&self, session: &str) -> PathBuf {
        self.dir.path().join(format!("{session}.sock"))
    }

    fn map(&self, session: &str, to: &str, more: &[&str]) -> Output {
        let frontend = format!("nbd:unix:{}", self.socket(session).display());
        let fixed = [
            "map",
            "--session",
            session,
            "--as",
            &frontend,
            "--wait",
            "20s",
        ];
        command(&[&fixed[..], more, &[to, "disk"]].concat())
    }

    fn unmap(&self, session: &str) {
        done(&command(&["vol", "unmap", "disk", "--session", session]));
    }
}

fn command(args: &[&str]) -> Output {
    let mut command = Command::new(memlane());
    command.args(args).output().expect("the command")
}

#[track_caller]
fn done(said: &Output) {
    assert!(said.status.success(), "{said:?}");
}

#[track_caller]
fn refused(code: i32, why: &str, what: impl Fn() -> Output) {
    let begin = Instant::now();
    let said = what();
    let took = begin.elapsed();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.status.code() == Some(code) && text.contains(why),
        "{said:?}"
    );
    assert!(took < SOON, "told after {took:?} only: {text}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn a_volume_over_tls_outlives_its_server_and_holds_what_was_written() {
    let Some(world) = World::new("tls-verify") else {
        return;
    };
    if !has("fio") {
        return skip("tls-verify", "no fio: apt-get install fio");
    }
    let server_folder = world.authority.server("server", "IP:127.0.0.1");
    let session = format!("{}-a", world.name);
    let client = world
        .authority
        .client("client", &format!("URI:memlane:session/{session}"));
    let tls = ["--tls", text(&server_folder)];
    let server = world.serve(&tls);
    done(&world.map(&session, &server.address(), &["--tls", text(&client)]));
    let who = format!("a certificate for {session}");
    let shown = command(&["vol", "ls", "--json"]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains(&who), "{shown}");
    let uri = format!("nbd+unix:///?socket={}", world.socket(&session).display());
    let fio = Verifying::start(&uri, 6, &[]);
    std::thread::sleep(Duration::from_millis(2000));
    let port = server.port;
    drop(server.running.stop());
    let root = world.dir.path().join("root");
    let _server = Server::start(&world.name, &root, port, &tls);
    let verdict = fio.must_find_nothing(LIMIT);
    println!(
        "tls-verify: {} requests, the longest took {:.0} ms",
        verdict.requests,
        verdict.longest.as_secs_f64() * 1000.0
    );
    world.unmap(&session);
}

#[test]
fn who_cannot_prove_to_be_the_session_is_refused_soon_and_told_why() {
    let Some(world) = World::new("tls-refused") else {
        return;
    };
    let (ours, others) = (&world.authority, Authority::new("tls-others"));
    let server = ours.server("server", "IP:127.0.0.1,DNS:storage.example");
    let namespace = ["--tls", text(&server), "--namespace", "tenants/%SESSNAME%"];
    let server = world.serve(&namespace);
    let to = server.address();
    let one = ours.client("one", "URI:memlane:session/one");
    let none = ours.client("none", "DNS:client.example");
    let wrong_use = ours.server("wrong-use", "IP:127.0.0.1");
    for file in ["cert", "key"] {
        let from = wrong_use.join(format!("server-{file}.pem"));
        std::fs::copy(from, wrong_use.join(format!("client-{file}.pem"))).expect("a copy");
    }
    let stranger = others.client("stranger", "URI:memlane:session/one");
    let map = |session: &str, folder: &Path, more: &[&str]| {
        world.map(session, &to, &[&["--tls", text(folder)], more].concat())
    };
    refused(4, "may not have a session of this name", || {
        map("two", &one, &[])
    });
    refused(4, "may not have a session of this name", || {
        map("one", &none, &[])
    });
    // The client does not believe the server; once it does, the server does not believe the client.
    refused(4, "unknown authority", || map("one", &stranger, &[]));
    std::fs::copy(ours.certificate(), stranger.join("ca-cert.pem")).expect("a copy");
    refused(4, "our certificate is of an unknown authority", || {
        map("one", &stranger, &[])
    });
    refused(4, "for another use", || map("one", &wrong_use, &[]));
    refused(4, "for another name", || {
        map("one", &one, &["--tls-name", "other.example"])
    });
    refused(4, "it wants TLS", || world.map("one", &to, &[]));
    // Which files are meant.
    refused(2, "ca-cert.pem: ", || {
        map("one", &world.dir.path().join("root"), &[])
    });
    refused(2, "not a folder", || map("one", Path::new("/nowhere"), &[]));
    done(&map("one", &one, &["--tls-name", "storage.example"]));
    // The same session, without what was asked for, or with something else.
    refused(2, "say --tls, too", || world.map("one", &to, &[]));
    refused(2, "other certificates", || map("one", &one, &[]));
    world.unmap("one");
    drop(server);
    let plain = world.serve(&["--insecure"]);
    let to = plain.address();
    refused(4, "without TLS", || {
        world.map("late", &to, &["--tls", text(&one)])
    });
}

#[test]
fn renewed_certificates_are_used_without_a_restart() {
    let Some(world) = World::new("tls-renewed") else {
        return;
    };
    let folder = world.authority.server("server", "IP:127.0.0.2");
    let client = world.authority.client("client", "URI:memlane:session/*");
    let server = world.serve(&["--tls", text(&folder)]);
    let session = format!("{}-a", world.name);
    let map = || world.map(&session, &server.address(), &["--tls", text(&client)]);
    refused(4, "for another name", map);
    world.authority.server("server", "IP:127.0.0.1");
    let begin = Instant::now();
    while !server
        .running
        .stderr()
        .contains("new certificates are in use")
    {
        assert!(begin.elapsed() < LIMIT, "{}", server.running.stderr());
        std::thread::sleep(Duration::from_millis(50));
    }
    done(&map());
    world.unmap(&session);
}

#[test]
fn an_nbd_export_with_tls_is_for_clients_with_a_certificate() {
    let Some(world) = World::new("tls-nbd") else {
        return;
    };
    if !has("nbdinfo") || !has("qemu-img") {
        return skip(
            "tls-nbd",
            "no nbdinfo or qemu-img: apt-get install libnbd-bin qemu-utils",
        );
    }
    let both = world.authority.server("both", "DNS:localhost,IP:127.0.0.1");
    world.authority.client("both", "DNS:anybody");
    let server = world.serve(&[]);
    let session = format!("{}-a", world.name);
    let to = server.address();
    let map = |frontend: &str| {
        let folder = text(&both);
        let fixed = ["map", "--session", &session, "--as", frontend];
        command(&[&fixed[..], &["--nbd-tls", folder, &to, "disk"]].concat())
    };
    refused(2, "not an NBD export", || map("loop"));
    let said = map("nbd:tcp:127.0.0.1:0");
    done(&said);
    let place = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    let port = place.strip_prefix("nbds://127.0.0.1:").expect("its place");
    let secure = format!(
        "nbds://localhost:{port}/?tls-certificates={}",
        both.display()
    );
    let mut info = Command::new("nbdinfo");
    info.args(["--size", &secure]);
    assert_eq!(must(info).trim(), (64 << 20).to_string());
    let mut info = Command::new("qemu-img");
    let object = format!("tls-creds-x509,id=t,endpoint=client,dir={}", both.display());
    let options = format!("driver=nbd,host=localhost,port={port},tls-creds=t");
    info.args(["info", "--object", &object, "--image-opts", &options]);
    assert!(must(info).contains("64 MiB"));
    let said = Command::new("nbdinfo")
        .arg(format!("nbd://localhost:{port}/"))
        .output();
    assert!(!said.expect("nbdinfo").status.success(), "without TLS");
    world.unmap(&session);
}

#[test]
fn nobody_takes_the_folder_of_another_user_or_of_who_comes_by_tcp() {
    let Some(world) = World::new("tls-users") else {
        return;
    };
    let root = world.dir.path().join("root");
    let plain = |more: &[&str]| {
        let fixed = ["serve", "--name", "never", "--root", text(&root)];
        command(&[&fixed[..], &["--namespace", "tenants/%SESSNAME%"], more].concat())
    };
    refused(2, "could use any session's name", || {
        plain(&["--listen", "tcp://127.0.0.1:1"])
    });
    if !is_root() || !has("setpriv") {
        return skip("tls-users", "not root: no other user to be");
    }
    std::fs::create_dir_all(root.join("tenants/uid65534@x")).expect("a folder");
    std::fs::copy(root.join("disk"), root.join("tenants/uid65534@x/disk")).expect("a copy");
    let server = world.serve(&["--insecure", "--namespace", "tenants/%SESSNAME%"]);
    let folder = TempDir::new("tls-user-65534");
    must({
        let mut chown = Command::new("chown");
        chown.arg("65534").arg(folder.path());
        chown
    });
    let copy = folder.path().join("memlane");
    std::fs::copy(memlane(), &copy).expect("a copy");
    let as_nobody = |args: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .args(args)
            .output()
            .expect("setpriv")
    };
    let local = format!("local:{}", server.name);
    let frontend = format!("nbd:unix:{}", folder.path().join("s").display());
    let map = |session: &str| {
        as_nobody(&[
            "map",
            "--session",
            session,
            "--as",
            &frontend,
            &local,
            "disk",
        ])
    };
    refused(4, "may not have a session of this name", || map("one"));
    done(&map("uid65534@x"));
    done(&as_nobody(&[
        "vol",
        "unmap",
        "disk",
        "--session",
        "uid65534@x",
    ]));
}
