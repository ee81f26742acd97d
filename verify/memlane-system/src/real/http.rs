//! Starts nginx and haproxy, and sends them requests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::data::{blob, sha256_of_file};
use super::lane::{LaneReport, Reason};
use super::net::free_port;
use super::proc::{Done, Proc, send};
use super::stage::{Stage, Story, script};
use crate::harness::is_root;

/// Bytes of `big.bin`.
pub const BIG: usize = 48 << 20;
/// How many `small/N` there are.
pub const SMALL_FILES: usize = 200;

/// The files that a web server serves.
#[derive(Debug)]
pub struct Site {
    /// Their directory.
    pub root: PathBuf,
    /// SHA-256 of `big.bin`.
    pub big_hash: String,
}

impl Site {
    /// Writes `big.bin`, `mid.bin` (300,000 bytes), `page` (6,000) and `small/0`… (0 to 19,901 bytes).
    pub fn new(story: &Story) -> Site {
        let root = story.dir().join("site");
        std::fs::create_dir_all(root.join("small")).expect("site");
        let write = |name: &str, bytes: Vec<u8>| {
            std::fs::write(root.join(name), bytes).expect("file of the site");
        };
        write("big.bin", blob(1, BIG));
        write("mid.bin", blob(2, 300_000));
        write("page", blob(3, 6000));
        for n in 0..SMALL_FILES {
            write(
                &format!("small/{n}"),
                blob(1000 + n as u64, n * n / 2 + n % 7),
            );
        }
        let big_hash = sha256_of_file(&root.join("big.bin"));
        Site { root, big_hash }
    }

    /// The bytes of one of its files.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.root.join(name)).expect("file of the site")
    }
}

/// nginx: a master (root, if the tests are) and two workers of another user.
#[derive(Debug)]
pub struct Nginx {
    /// Master and workers.
    pub proc: Proc,
    /// Where it listens.
    pub port: u16,
}

impl Nginx {
    /// Starts it in the stage's mode.
    pub fn start(stage: &Stage, site: &Site) -> Nginx {
        Nginx::launch(stage, site, stage.command("nginx"), Stage::start)
    }

    /// Starts it without memlane.
    pub fn start_plain(stage: &Stage, site: &Site) -> Nginx {
        Nginx::launch(
            stage,
            site,
            stage.plain_command("nginx"),
            Stage::start_plain,
        )
    }

    fn launch(
        stage: &Stage,
        site: &Site,
        mut command: Command,
        start: fn(&Stage, &str, Command) -> Proc,
    ) -> Nginx {
        let port = free_port();
        let prefix = stage.new_dir("nginx");
        let config = prefix.join("nginx.conf");
        let listens_at = format!("{}:{port}", stage.host());
        std::fs::write(&config, nginx_config(&prefix, &site.root, &listens_at))
            .expect("nginx.conf");
        command
            .args(["-e", "stderr", "-p"])
            .arg(&prefix)
            .arg("-c")
            .arg(&config);
        let mut proc = start(stage, "nginx", command);
        proc.wait_listening(port);
        let mut nginx = Nginx { proc, port };
        nginx.wait_for_workers(&[]);
        nginx
    }

    /// Address of one of its files.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Address of one of its files, for a client in another network namespace.
    pub fn url_from(&self, client: &Stage, path: &str) -> String {
        format!("http://{}:{}/{path}", client.host(), self.port)
    }

    /// Process ids of the workers.
    pub fn workers(&self) -> Vec<u32> {
        let master = self.proc.program_id();
        let is_worker = |pid: &u32| {
            let name = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let name = String::from_utf8_lossy(&name).into_owned();
            name.starts_with("nginx: worker process") && !name.contains("shutting down")
        };
        super::tree::tree(master)
            .into_iter()
            .filter(is_worker)
            .collect()
    }

    /// Reloads the configuration: new workers, the old ones finish what they serve.
    pub fn reload(&mut self) {
        let old = self.workers();
        self.proc.signal("HUP");
        self.wait_for_workers(&old);
    }

    /// Kills one worker, as a crash would; the master starts another.
    pub fn kill_a_worker(&mut self) {
        let victim = self.workers()[0];
        send("KILL", &[victim]);
        self.wait_for_workers(&[victim]);
    }

    fn wait_for_workers(&mut self, but_not: &[u32]) {
        let limit = Duration::from_secs(20);
        let master = self.proc.program_id();
        let start = std::time::Instant::now();
        loop {
            let workers = self.workers();
            if workers.len() == 2 && !workers.iter().any(|pid| but_not.contains(pid)) {
                return;
            }
            assert!(self.proc.running(), "nginx ended");
            assert!(
                start.elapsed() < limit,
                "nginx {master} has workers {workers:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it in good order and returns what its pages said.
    pub fn finish(self) -> LaneReport {
        let lane = self.proc.lane();
        self.proc.stop_by("QUIT").success();
        lane
    }
}

fn nginx_config(prefix: &Path, root: &Path, listens_at: &str) -> String {
    let (prefix, root) = (prefix.display(), root.display());
    // Without root there is nobody else to be.
    let user = if is_root() {
        format!("user {};", somebody_else())
    } else {
        String::new()
    };
    format!(
        "{user}
daemon off;
worker_processes 2;
pid {prefix}/nginx.pid;
error_log stderr error;
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
    server {{
        listen {listens_at} backlog=1024;
        root {root};
        location /copied/ {{ alias {root}/; sendfile off; output_buffers 2 64k; }}
    }}
}}
"
    )
}

/// A user without rights, whom every distribution has.
fn somebody_else() -> &'static str {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if users.contains("www-data:") {
        "www-data"
    } else {
        "nobody"
    }
}

/// haproxy between clients and an nginx.
#[derive(Debug)]
pub struct Haproxy {
    /// The process.
    pub proc: Proc,
    /// Where it listens.
    pub port: u16,
}

impl Haproxy {
    /// Starts it in the stage's mode, in front of `backend`.
    pub fn start(stage: &Stage, backend: u16) -> Haproxy {
        Haproxy::before(stage, "127.0.0.1", backend)
    }

    /// The same, in front of a server at another address.
    pub fn before(stage: &Stage, address: &str, backend: u16) -> Haproxy {
        let port = free_port();
        let config = stage.new_dir("haproxy").join("haproxy.cfg");
        let (front, back) = (
            format!("{}:{port}", stage.host()),
            format!("{address}:{backend}"),
        );
        std::fs::write(&config, haproxy_config(&front, &back)).expect("haproxy.cfg");
        let mut command = stage.command("haproxy");
        command.args(["-db", "-f"]).arg(&config);
        let mut proc = stage.start("haproxy", command);
        proc.wait_listening(port);
        Haproxy { proc, port }
    }

    /// Address of a file behind it.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Address of a file behind it, for a client in another network namespace.
    pub fn url_from(&self, client: &Stage, path: &str) -> String {
        format!("http://{}:{}/{path}", client.host(), self.port)
    }

    /// Ends it and returns what its page said.
    pub fn finish(self) -> LaneReport {
        let lane = self.proc.lane();
        // It lets its own signal end it, or returns a code that says so: either is fine.
        self.proc.stop_by("TERM");
        lane
    }
}

fn haproxy_config(front: &str, back: &str) -> String {
    format!(
        "global
    maxconn 512
    nbthread 2
defaults
    mode http
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    http-reuse always
listen front
    bind {front}
    server back {back}
"
    )
}

/// Fetches `urls` over one connection, each into a file of its own.
pub fn curl_all(stage: &Stage, urls: &[String], more: &[&str]) -> (Done, Vec<PathBuf>) {
    let dir = stage.new_dir("fetched");
    let mut config = String::new();
    let mut files = Vec::new();
    for (n, url) in urls.iter().enumerate() {
        let file = dir.join(n.to_string());
        config.push_str(&format!(
            "url = \"{url}\"\noutput = \"{}\"\n",
            file.display()
        ));
        files.push(file);
    }
    let path = dir.join("curlrc");
    std::fs::write(&path, config).expect("curl's instructions");
    let mut command = stage.command("curl");
    command
        .args(["-q", "-sS", "--fail", "--noproxy", "*"])
        .args(more)
        .arg("-K")
        .arg(&path);
    let done = stage.run("curl", command, Duration::from_secs(90));
    (done, files)
}

/// Fetches one file.
pub fn curl(stage: &Stage, url: &str, more: &[&str]) -> (Done, PathBuf) {
    let (done, mut files) = curl_all(stage, &[url.to_owned()], more);
    (done, files.remove(0))
}

/// What `wrk` counted, with each body compared with what it should be.
#[derive(Debug)]
pub struct Wrk {
    /// Answers whose body was compared.
    pub checked: u64,
    /// Its lane.
    pub lane: LaneReport,
}

/// Lets `wrk` ask for `url` for `seconds`, over `connections` connections, and
/// compare each body with the file `expected`.
///
/// # Panics
/// If any answer was wrong or any connection failed.
pub fn wrk(stage: &Stage, url: &str, expected: &Path, connections: u32, seconds: u32) -> Wrk {
    let mut command = stage.command("wrk");
    command.args([
        "-t",
        "2",
        "-c",
        &connections.to_string(),
        "--timeout",
        "30s",
    ]);
    command
        .args(["-d", &format!("{seconds}s"), "-s"])
        .arg(script("compare.lua"))
        .arg(url);
    command.arg("--").arg(expected);
    let done = stage.run("wrk", command, Duration::from_secs(90));
    let text = done.stdout();
    let line = text.lines().find_map(|line| line.strip_prefix("compared:"));
    let numbers = line.unwrap_or_else(|| panic!("wrk said:\n{text}"));
    let numbers: Vec<u64> = numbers
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    let [checked, wrong, errors] = numbers[..] else {
        panic!("wrk said:\n{text}");
    };
    assert_eq!(
        (wrong, errors),
        (0, 0),
        "wrong answers, failed connections:\n{text}"
    );
    assert!(
        checked > u64::from(connections),
        "wrk got only {checked} answers:\n{text}"
    );
    Wrk {
        checked,
        lane: done.lane,
    }
}

/// Reasons of a program that talks to one that is not under memlane.
pub const PEER_OUTSIDE: &[Reason] = &[Reason::PEER_NO_MEMLANE, Reason::TOO_YOUNG, Reason::CLOSING];
