//! csi-sanity, the test suite of the Container Storage Interface, against `memlane-csi` with a server on this machine.

use std::process::Command;
use std::time::Duration;

use memlane_system::blocks::skip;
use memlane_system::csi::{self, Plugin};
use memlane_system::harness::run;

const LIMIT: Duration = Duration::from_secs(180);

/// What the suite may leave out: calls that the plugin does not offer.
const NOT_OFFERED: [&str; 8] = [
    "ControllerGetVolumeHealth not supported",
    "ControllerListVolumeHealth not supported",
    "ControllerModifyVolume not supported",
    "GroupControllerService not supported",
    "Modify Volume not supported",
    "Modify volume not supported",
    "NodeGetStorageHealth not supported",
    "testnodevolumeattachlimit not enabled",
];
/// What needs places, which this plugin was not given.
const WITHOUT_PLACES: &str = "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported";

fn passes(access: &str) {
    if let Some(why) = csi::missing() {
        return skip("csi-sanity", &why);
    }
    let Some(program) = csi::sanity() else { return };
    let plugin = Plugin::start(&format!("csi-sanity-{access}"), &[]);
    let place = |name: &str| plugin.dir().join(name).display().to_string();
    let mut suite = Command::new(program);
    suite
        .args(["--ginkgo.v", "--ginkgo.no-color"])
        .args(["--csi.endpoint", &place("csi.sock")])
        .args(["--csi.mountdir", &place("target")])
        .args(["--csi.stagingdir", &place("staging")])
        .args(["--csi.testvolumesize", "67108864"])
        .args(["--csi.testvolumeexpandsize", "134217728"])
        .args(["--csi.testvolumeaccesstype", access]);
    let outcome = run(suite, LIMIT);
    let said = plugin.stderr();
    assert!(outcome.is_ok(), "{}\n{said}", outcome.report());
    let skipped = outcome.stdout.lines();
    let skipped = skipped.filter_map(|line| line.trim().strip_prefix("[SKIPPED] "));
    let skipped = skipped.filter(|line| !line.starts_with("in ["));
    let known = |why: &&str| NOT_OFFERED.contains(why) || *why == WITHOUT_PLACES;
    let wrong: Vec<&str> = skipped.filter(|why| !known(why)).collect();
    assert!(wrong.is_empty(), "left out: {wrong:?}");
    assert!(
        outcome.stdout.contains("82 Passed | 0 Failed"),
        "{}",
        outcome.report()
    );
    plugin.must_be_clean();
}

#[test]
fn all_that_the_plugin_offers_passes_with_file_systems() {
    passes("mount");
}

#[test]
fn all_that_the_plugin_offers_passes_with_block_devices() {
    passes("block");
}
