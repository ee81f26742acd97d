//! io_uring by syscall(2) and by liburing: changes of epoll sets as libuv makes them, and operations on connections.

use std::path::Path;

use memlane_system::cases::{Exception, compare};
use memlane_system::harness::{Mode, command};

const EXCEPTIONS: &[Exception] = &[];

#[test]
fn io_uring_does_what_it_does_for_tcp() {
    compare("uring", EXCEPTIONS);
}

#[test]
fn io_uring_by_liburing_does_what_it_does_for_tcp() {
    if !Path::new(env!("OUT_DIR")).join("liburing").exists() {
        let text = "no liburing.h (package liburing-dev)";
        assert!(
            std::env::var_os("MEMLANE_TEST_REQUIRE_ALL").is_none(),
            "{text}"
        );
        eprintln!("SKIPPED: {text}");
        return;
    }
    compare("liburing", EXCEPTIONS);
}

/// Has two connections, and a plugin that calls a function with the name of one of liburing's.
const HAS_A_PLUGIN: &str = r#"
import ctypes, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
print(ctypes.CDLL(sys.argv[1]).ask())
"#;

#[test]
fn a_function_with_a_name_of_liburings_is_called_and_its_process_stays_on_tcp() {
    let plugin = Path::new(env!("OUT_DIR")).join("plugin.so");
    let mut command = command(Mode::Auto, "python3");
    command.args(["-c", HAS_A_PLUGIN]).arg(plugin);
    let ran = command.env("MEMLANE_STATS_ON_EXIT", "1").output();
    let ran = ran.expect("python3 runs");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "42\n", "{ran:?}");
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(told.contains("2 x IO_URING"), "{told}");
}
