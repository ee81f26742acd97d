//! `memlane net link` over memif: frames of a generator arrive whole at a sink in another process, which tells how many.

use std::process::{Child, Command, Stdio};

struct Ended(Option<Child>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn link(a: &str, b: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlane"));
    command.args(["net", "link", a, b, "--json"]);
    command
}

#[test]
fn frames_of_all_lengths_go_over_memif_from_a_generator_to_a_sink() {
    let socket = format!("memif:@memlane-net-memif-{}", std::process::id());
    let server = format!("{socket}?role=server");
    let sink = link(&server, "sink:").stdout(Stdio::piped()).spawn();
    let mut sink = Ended(Some(sink.expect("memlane starts")));
    let sent = link("gen:size=64-9000,count=3000", &socket).output();
    let sent = sent.expect("memlane runs");
    assert!(
        sent.status.success(),
        "{}",
        String::from_utf8_lossy(&sent.stderr)
    );
    // The last frames are taken before the sink's side looks for another link.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let child = sink.0.take().expect("it runs");
    let told = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(told.expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let verdict = &told["ends"][1]["verdict"];
    assert_eq!(verdict["good"], 3000, "{told}");
    for wrong in ["missing", "late", "twice", "changed", "strange"] {
        assert_eq!(verdict[wrong], 0, "{told}");
    }
}

#[test]
fn a_role_that_there_is_not_is_refused_with_what_there_is() {
    let output = link("memif:/x?role=master", "sink:")
        .output()
        .expect("memlane runs");
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("role=server"), "{told}");
}
