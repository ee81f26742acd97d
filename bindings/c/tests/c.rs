//! C programs against the installed header and library, shared and static, found by pkg-config.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// How the programs find the library.
#[derive(Clone, Copy, Debug)]
enum Linked {
    Shared,
    Static,
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("memlane-c-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Is this program here? If not, it is said so, or fails, as the rest of the tests do.
fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        let required = std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_some();
        assert!(!required, "no {program}");
        // Not eprintln: it is to be seen when the test passes, too.
        let _ = writeln!(std::io::stderr(), "SKIPPED: no {program}");
    }
    there
}

fn runs(command: &mut Command) -> Output {
    let output = command.output().expect("it can be started");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {words}");
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Where cargo has put the libraries of this build.
fn built() -> PathBuf {
    let tests = std::env::current_exe().expect("this program");
    tests.parent().expect("its folder").to_owned()
}

/// The library, installed as the guide says.
fn installed() -> Folder {
    let folder = Folder::new();
    let script = Path::new(HERE).join("install.sh");
    let mut install = Command::new("sh");
    install.arg(script).arg("--prefix").arg(&folder.0);
    runs(install.arg("--built").arg(built()));
    folder
}

/// Compiles a program as its user would.
fn compiled(prefix: &Path, name: &str, linked: Linked) -> PathBuf {
    let program = prefix.join(format!("{name}-{linked:?}"));
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "memlane"]);
    ask.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    if let Linked::Static = linked {
        ask.arg("--static");
    }
    let mut flags = text(&runs(&mut ask));
    if let Linked::Static = linked {
        flags = flags.replace("-lmemlane", "-l:libmemlane.a");
    }
    let source = Path::new(HERE).join(format!("tests/programs/{name}.c"));
    let mut cc = Command::new("cc");
    cc.args([
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
    ]);
    cc.arg("-o").arg(&program).arg(source);
    runs(cc.args(flags.split_whitespace()));
    program
}

fn command(prefix: &Path, program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "240"]).arg(program);
    command.env("LD_LIBRARY_PATH", prefix.join("lib"));
    command
}

/// A process that says where it listens, and another one that is told so; what the first one said at its end.
fn pair(prefix: &Path, receiver: (&Path, &[&str]), sender: (&Path, &[&str])) -> String {
    let mut receives = command(prefix, receiver.0);
    let started = receives.args(receiver.1).stdout(Stdio::piped()).spawn();
    let mut receiver = started.expect("a receiver");
    let mut says = BufReader::new(receiver.stdout.take().expect("its output")).lines();
    let address = says.next().expect("a line").expect("its address");
    let mut sends = command(prefix, sender.0);
    let at = |arg: &&str| match *arg {
        "ADDRESS" => address.clone(),
        other => other.to_owned(),
    };
    let sent = sends.args(sender.1.iter().map(at)).status();
    let last = says.next();
    let ended = receiver.wait().expect("its end");
    assert!(sent.expect("a sender").success());
    assert!(ended.success());
    last.expect("a line").expect("its result")
}

#[test]
fn two_programs_move_hundreds_of_megabytes_and_every_byte_is_right() {
    if !has("cc") || !has("pkg-config") {
        return;
    }
    let prefix = installed();
    for (linked, path, bytes, bounced) in [
        (Linked::Shared, "lane", 400_000_000, 0),
        (Linked::Shared, "mapped", 200_000_000, 0),
        (Linked::Static, "staged", 20_000_001, 20_000_001),
    ] {
        let receiver = compiled(&prefix.0, "receiver", linked);
        let sender = compiled(&prefix.0, "sender", linked);
        let receives = (&*receiver, &["memfd:1M", "16384", path][..]);
        let count = bytes.to_string();
        let said = pair(&prefix.0, receives, (&sender, &["ADDRESS", &count]));
        assert_eq!(said, format!("{bytes} bytes by {path}, bounced {bounced}"));
    }
}

#[test]
fn bytes_of_a_connection_go_through_memory_with_and_without_copies() {
    if !has("cc") || !has("pkg-config") {
        return;
    }
    let prefix = installed();
    let program = compiled(&prefix.0, "stream", Linked::Shared);
    for (from, to) in [("copy", "copy"), ("place", "place"), ("place", "copy")] {
        let send = ["send", from, "ADDRESS", "100000000"];
        let said = pair(&prefix.0, (&program, &["receive", to]), (&program, &send));
        assert_eq!(said, "100000000 bytes, some in memory", "{from}, {to}");
    }
}

#[test]
fn what_a_program_does_wrong_is_a_number() {
    if !has("cc") || !has("pkg-config") {
        return;
    }
    let prefix = installed();
    for linked in [Linked::Shared, Linked::Static] {
        let program = compiled(&prefix.0, "misuse", linked);
        assert_eq!(text(&runs(&mut command(&prefix.0, &program))), "right\n");
    }
}

#[test]
fn valgrind_finds_nothing() {
    if !has("cc") || !has("pkg-config") || !has("valgrind") {
        return;
    }
    let prefix = installed();
    let program = compiled(&prefix.0, "misuse", Linked::Shared);
    let mut memcheck = Command::new("timeout");
    memcheck.args([
        "-k",
        "5",
        "300",
        "valgrind",
        "--quiet",
        "--error-exitcode=9",
    ]);
    memcheck.args(["--leak-check=full", "--errors-for-leak-kinds=definite"]);
    memcheck.arg(program);
    memcheck.env("LD_LIBRARY_PATH", prefix.0.join("lib"));
    assert_eq!(text(&runs(&mut memcheck)), "right\n");
}

// ---- header and library -----------------------------------------------------

fn header() -> &'static str {
    static HEADER: OnceLock<String> = OnceLock::new();
    HEADER.get_or_init(|| {
        let path = Path::new(HERE).join("include/memlane.h");
        let text = std::fs::read_to_string(path).expect("the header");
        without_comments(&text)
    })
}

fn without_comments(text: &str) -> String {
    let parts = text.split("/*");
    parts
        .enumerate()
        .map(|(n, part)| match n {
            0 => part,
            _ => part.split_once("*/").map_or("", |(_, code)| code),
        })
        .collect()
}

/// Functions by name, each with its number of parameters.
fn prototypes() -> BTreeSet<(String, usize)> {
    let statements = header().split([';', '{', '}']);
    let functions = statements.filter_map(|statement| {
        let (before, parameters) = statement.split_once('(')?;
        let name = before.split([' ', '*', '\n']).next_back()?;
        let count = match parameters.trim_end_matches([')', '\n']) {
            "void" => 0,
            some => some.split(',').count(),
        };
        name.starts_with("memlane_")
            .then(|| (name.to_owned(), count))
    });
    functions.collect()
}

/// Functions of the code by name, each with its number of parameters.
fn exports() -> BTreeSet<(String, usize)> {
    let mut found = BTreeSet::new();
    for file in ["lib", "region", "devmem", "stream"] {
        let path = Path::new(HERE).join(format!("src/{file}.rs"));
        let code = std::fs::read_to_string(path).expect("a source");
        for function in code.split("extern \"C\" fn ").skip(1) {
            let (name, rest) = function.split_once('(').expect("parameters");
            let (parameters, _) = rest.split_once(')').expect("their end");
            let count = parameters.matches(':').count();
            found.insert((name.to_owned(), count));
        }
    }
    found
}

#[test]
fn the_header_has_the_code_s_functions_and_no_others() {
    let (prototypes, exports) = (prototypes(), exports());
    assert!(prototypes.len() > 30, "{prototypes:?}");
    assert_eq!(prototypes, exports);
}

#[test]
fn the_library_exports_what_the_header_has_and_nothing_else() {
    if !has("nm") || !has("readelf") {
        return;
    }
    let library = built().join("libmemlane_c.so");
    let symbols = runs(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&library),
    );
    let symbols = text(&symbols);
    let exported: BTreeSet<_> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().next_back())
        .collect();
    let prototypes = prototypes();
    let named: BTreeSet<_> = prototypes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(exported, named);
    let dynamic = text(&runs(Command::new("readelf").arg("-d").arg(&library)));
    assert!(dynamic.contains("[libmemlane.so.0]"), "{dynamic}");
}

#[test]
fn the_header_has_the_code_s_error_numbers() {
    let (_, errors) = header().split_once("enum memlane_error {").expect("errors");
    let (errors, _) = errors.split_once('}').expect("their end");
    let mut count = 0;
    for error in errors.split(',') {
        let (name, number) = error.split_once('=').expect("a number");
        let number = number.trim().parse().expect("a number");
        // SAFETY: it lives for ever.
        let known = unsafe { std::ffi::CStr::from_ptr(memlane_c::memlane_error_name(number)) };
        assert_eq!(known.to_str(), Ok(name.trim()));
        count += 1;
    }
    assert_eq!(count, 14);
    let abi = format!("#define MEMLANE_ABI {}\n", memlane_c::ABI);
    assert!(header().contains(&abi));
}

#[test]
fn the_header_is_c99_c11_and_c_plus_plus() {
    for (compiler, language, standards) in [
        ("cc", "c", &["-std=c99", "-std=c11", "-std=c17"][..]),
        ("c++", "c++", &["-std=c++11", "-std=c++20"][..]),
    ] {
        if !has(compiler) {
            continue;
        }
        for standard in standards {
            let mut compile = Command::new(compiler);
            compile.args([
                "-x",
                language,
                standard,
                "-pedantic",
                "-Wall",
                "-Wextra",
                "-Werror",
            ]);
            compile
                .arg("-fsyntax-only")
                .arg(Path::new(HERE).join("include/memlane.h"));
            runs(&mut compile);
        }
    }
}
