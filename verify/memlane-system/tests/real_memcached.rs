//! memcached (four threads) with Python clients over plain sockets.

use std::time::Duration;

use memlane_system::real::kv::Memcached;
use memlane_system::real::{SHORT_LIVED, counts, story};

#[test]
fn memcached_returns_the_blobs_that_it_was_given() {
    story("memcached", &["memcached", "python3"], |stage| {
        let memcached = Memcached::start(stage);
        let mut command = stage.python("memcache.py");
        command.args([&memcached.port.to_string(), "2", "8"]);
        let done = stage.run("memcache.py", command, Duration::from_secs(60));
        let text = done.stdout();
        let counts = counts(&text);
        assert!(counts["values"] >= 24 && counts["batches"] >= 24, "{text}");
        done.lane.must_use_ring(&[SHORT_LIVED]);
        memcached.finish().must_use_ring(&[SHORT_LIVED]);
    });
}
