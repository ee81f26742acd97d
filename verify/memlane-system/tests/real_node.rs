//! Node's http server and client: libuv, which changes its epoll set by io_uring since version 1.45.

use std::path::Path;
use std::time::Duration;

use memlane_system::real::{SHORT_LIVED, counts, fetched, free_port, story, wait_listening};

#[test]
fn node_answers_a_keep_alive_agent_and_streams_both_ways() {
    answers_and_streams("node", Path::new("node"));
}

#[test]
fn node_24_does_so_too_and_its_loop_s_io_uring_ends_no_lane() {
    if let Some(node) = fetched::node() {
        answers_and_streams("node-24", &node);
    }
}

fn answers_and_streams(name: &str, node: &Path) {
    let needs = node.to_str().expect("a path of ours");
    story(name, &[needs], |stage| {
        let port = free_port();
        let mut server = stage.command(node);
        server
            .arg(memlane_system::real::script("node_server.js"))
            .arg(port.to_string());
        let server = stage.start("node-server", server);
        wait_listening(port, "node");
        for sockets in ["1", "8"] {
            let mut client = stage.command(node);
            client.arg(memlane_system::real::script("node_client.js"));
            client.args([&port.to_string(), sockets]);
            let done = stage.run("node-client", client, Duration::from_secs(60));
            let text = done.stdout();
            let counts = counts(&text);
            assert_eq!(
                [counts["blobs"], counts["hashes"], counts["echoes"]],
                [140, 60, 6]
            );
            assert_eq!(
                counts["sockets"],
                sockets.parse::<u64>().unwrap(),
                "not kept: {text}"
            );
            done.lane.must_use_ring(&[SHORT_LIVED]);
        }
        let lane = server.lane();
        server.stop().success();
        lane.must_use_ring(&[SHORT_LIVED]);
    });
}
