//! Echo servers and clients of several languages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::data::counts;
use super::lane::LaneReport;
use super::net::{free_port, wait_listening};
use super::proc::{Done, Proc};
use super::stage::{Stage, Story, program, script};

/// A server that sends back what it gets.
#[derive(Debug)]
pub struct EchoServer {
    /// The process.
    pub proc: Proc,
    /// Where it listens.
    pub port: u16,
}

impl EchoServer {
    /// Starts the command, to which the port is the last argument but `more`.
    pub fn start(stage: &Stage, mut command: Command, more: &[&Path]) -> EchoServer {
        let port = free_port();
        command.arg(port.to_string()).args(more);
        let proc = stage.start("echo-server", command);
        wait_listening(port, "the echo server");
        EchoServer { proc, port }
    }

    /// One of `echo_server.py`.
    pub fn python(stage: &Stage, kind: &str, more: &[&Path]) -> EchoServer {
        let mut command = stage.python("echo_server.py");
        command.arg(kind);
        EchoServer::start(stage, command, more)
    }

    /// Ends it and returns what its page said.
    pub fn finish(self) -> LaneReport {
        let lane = self.proc.lane();
        self.proc.stop();
        lane
    }
}

/// How much an echo client does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Connections at once.
    pub connections: u32,
    /// Messages on each.
    pub rounds: u32,
    /// Bytes of the largest message.
    pub most: u32,
}

impl Load {
    /// As arguments of the echo clients.
    pub fn args(self) -> [String; 3] {
        [self.connections, self.rounds, self.most].map(|number| number.to_string())
    }
}

/// Runs an echo client (`CLIENT PORT CONNECTIONS ROUNDS MAXBYTES …`) and checks what it counted.
///
/// # Panics
/// If it counted less than it should have.
pub fn echo(stage: &Stage, mut command: Command, port: u16, load: Load, more: &[&Path]) -> Done {
    command.arg(port.to_string()).args(load.args()).args(more);
    let done = stage.run("echo-client", command, Duration::from_secs(90));
    let text = done.stdout();
    let rounds = counts(&text).get("rounds").copied();
    assert_eq!(
        rounds,
        Some(u64::from(load.connections * load.rounds)),
        "{text}"
    );
    println!("{}", text.trim());
    done
}

/// `echo_client.py`.
pub fn python_echo(stage: &Stage, port: u16, load: Load, more: &[&Path]) -> Done {
    echo(stage, stage.python("echo_client.py"), port, load, more)
}

/// Compiles a Java source; returns the class path.
///
/// # Panics
/// If it does not compile.
pub fn javac(story: &Story, source: &str) -> PathBuf {
    let classes = story.dir().join("classes");
    let mut command = Command::new(program("javac"));
    command.arg("-d").arg(&classes).arg(script(source));
    must_build(&mut command);
    classes
}

/// How a Go source is compiled.
#[derive(Clone, Copy, Debug)]
pub struct GoBuild<'a> {
    /// Linked with libc?
    pub cgo: bool,
    /// The release, such as `go1.21.13`; `None`: the one that is installed.
    pub release: Option<&'a str>,
    /// More flags of `go build`.
    pub flags: &'a [&'a str],
}

impl GoBuild<'_> {
    /// As `go build` does where there is a C compiler.
    pub const USUAL: GoBuild<'static> = GoBuild {
        cgo: true,
        release: None,
        flags: &[],
    };

    /// Static, as with `CGO_ENABLED=0`.
    pub const STATIC: GoBuild<'static> = GoBuild {
        cgo: false,
        ..GoBuild::USUAL
    };

    /// Compiles these files of `src/real/programs` into the program `name`.
    ///
    /// # Panics
    /// If they do not compile.
    pub fn build(self, story: &Story, sources: &[&str], name: &str) -> PathBuf {
        let module = story.dir().join(format!("{name}-module"));
        std::fs::create_dir_all(&module).expect("directory of the module");
        std::fs::write(
            module.join("go.mod"),
            "module example.com/test\n\ngo 1.18\n",
        )
        .expect("go.mod");
        for source in sources {
            std::fs::copy(script(source), module.join(source)).expect("the source");
        }
        let output = story.dir().join(name);
        let mut command = self.go();
        command.args(["build", "-o"]).arg(&output).args(self.flags);
        must_build(command.arg(".").current_dir(&module));
        output
    }

    /// Can this release be had? The go command gets it from its module proxy and keeps it in its module cache.
    pub fn is_there(self) -> bool {
        let out = self.go().arg("version").current_dir("/").output();
        let wanted = self.release.unwrap_or("go1");
        out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(wanted))
    }

    fn go(self) -> Command {
        let mut command = Command::new(program("go"));
        command.env("CGO_ENABLED", if self.cgo { "1" } else { "0" });
        command
            .env("GO111MODULE", "on")
            .env("GOFLAGS", "")
            .env("GOTOOLCHAIN", self.release.unwrap_or("local"));
        command
    }
}

/// Compiles a Go source; `cgo` links it with libc.
///
/// # Panics
/// If it does not compile.
pub fn go_build(story: &Story, source: &str, cgo: bool) -> PathBuf {
    let name = if cgo { "with-cgo" } else { "static" };
    GoBuild {
        cgo,
        ..GoBuild::USUAL
    }
    .build(story, &[source], name)
}

/// A certificate for 127.0.0.1 and its key.
///
/// # Panics
/// If openssl can't make one.
pub fn certificate(story: &Story) -> (PathBuf, PathBuf) {
    let (cert, key) = (story.dir().join("cert.pem"), story.dir().join("key.pem"));
    let mut command = Command::new(program("openssl"));
    command.args([
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3",
    ]);
    command.args([
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]);
    command.arg("-keyout").arg(&key).arg("-out").arg(&cert);
    must_build(&mut command);
    (cert, key)
}

fn must_build(command: &mut Command) {
    let out = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {text}");
}
