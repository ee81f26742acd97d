//! Three programs and two hops: curl or wrk, haproxy, nginx.

use memlane_system::real::http::{self, Haproxy, Nginx, SMALL_FILES, Site, curl, curl_all};
use memlane_system::real::{SHORT_LIVED, Story, sha256_of_file};

#[test]
fn curl_fetches_large_and_small_files_through_haproxy() {
    let Some(story) = Story::new("haproxy-curl", &["nginx", "haproxy", "curl"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        let haproxy = Haproxy::start(stage, nginx.port);
        let (done, file) = curl(stage, &haproxy.url("big.bin"), &[]);
        assert_eq!(sha256_of_file(&file), site.big_hash);
        done.lane.must_use_ring(&[SHORT_LIVED]);

        let names: Vec<String> = (0..SMALL_FILES).map(|n| format!("small/{n}")).collect();
        let urls: Vec<String> = names.iter().map(|name| haproxy.url(name)).collect();
        let (done, files) = curl_all(stage, &urls, &[]);
        for (name, file) in names.iter().zip(&files) {
            assert!(
                std::fs::read(file).unwrap() == site.bytes(name),
                "{name} differs"
            );
        }
        done.lane.must_use_ring(&[SHORT_LIVED]);
        haproxy.finish().must_use_ring(&[SHORT_LIVED]);
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}

#[test]
fn wrk_gets_the_right_page_through_haproxy_every_time() {
    let Some(story) = Story::new("haproxy-wrk", &["nginx", "haproxy", "wrk"]) else {
        return;
    };
    let site = Site::new(&story);
    story.in_each_mode(|stage| {
        let nginx = Nginx::start(stage, &site);
        let haproxy = Haproxy::start(stage, nginx.port);
        for (path, connections) in [("page", 32), ("mid.bin", 8)] {
            let expected = site.root.join(path);
            let wrk = http::wrk(stage, &haproxy.url(path), &expected, connections, 1);
            wrk.lane.must_use_ring(&[SHORT_LIVED]);
        }
        haproxy.finish().must_use_ring(&[SHORT_LIVED]);
        nginx.finish().must_use_ring(&[SHORT_LIVED]);
    });
}
