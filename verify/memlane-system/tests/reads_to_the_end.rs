//! A program that reads until there is nothing, before it waits, makes no system call for that.

use std::time::Duration;

use memlane_system::real::{counts, story};

const ROUNDS: u64 = 600;
/// Reads in the kernel, at most. Some bytes of a young connection come by TCP; and a read looks at TCP where a wait has not
/// asked the kernel for a while, as on a busy machine.
const MOST: usize = 300;

#[test]
fn a_read_that_finds_nothing_leaves_the_kernel_alone_if_a_wait_has_just_asked_it() {
    story("reads-to-the-end", &["python3", "strace"], |stage| {
        let calls = stage.dir().join("calls");
        let python = stage.python("reads_to_the_end.py");
        let mut strace = stage.command("strace");
        strace.args(["-f", "-qq", "-e", "trace=recvfrom", "-o"]);
        strace
            .arg(&calls)
            .arg(python.get_program())
            .args(python.get_args());
        strace.arg(ROUNDS.to_string());
        let done = stage.run("echo", strace, Duration::from_secs(60));
        assert_eq!(counts(&done.stdout())["right"], ROUNDS);
        let text = std::fs::read_to_string(&calls).expect("what strace writes");
        let in_vain = text.lines().filter(|call| call.contains("EAGAIN")).count();
        if !stage.under_memlane() {
            // Each round ends with a read that finds nothing.
            return assert!(in_vain as u64 >= ROUNDS, "{in_vain} reads in vain");
        }
        done.lane.must_use_ring(&[]);
        assert!(
            in_vain <= MOST,
            "{in_vain} reads in vain in {ROUNDS} rounds"
        );
    });
}
