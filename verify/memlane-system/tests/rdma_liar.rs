//! A client over RDMA that lies costs itself its connection, and others nothing.
//!
//! `./dev test-kernels` runs it. The client is `examples/rdma_liar.rs`.
#![cfg(target_arch = "x86_64")]

mod rdma;

use std::path::PathBuf;

use memlane_system::harness::{TempDir, stripped};
use rdma::{VOLUME, assert_well, device, guest, kernel};

/// Lies, and what each is: see `examples/rdma_liar.rs`.
const LIES: &str =
    "magic version short leaves silent half long foreign garbage user key beyond flood";

/// Another client writes and reads while the lies are told.
fn story() -> String {
    format!(
        "{}{VOLUME}
dd if=/dev/urandom of=/tmp/data bs=1M count=2 2>/dev/null
(
    while [ ! -e /tmp/over ]; do
        dd if=/tmp/data of=/tmp/disk bs=64k conv=notrunc,fsync 2>/dev/null || echo failed >/tmp/failed
        cmp -n 2097152 /tmp/data /tmp/disk || echo differs >/tmp/failed
    done
    echo done >/tmp/done
) &
for lie in {LIES}; do
    /opt/rdma_liar 192.0.2.1:1234 $lie
    [ ! -e /tmp/failed ]
done
echo over >/tmp/over
until [ -e /tmp/done ]; do sleep 1; done
[ ! -e /tmp/failed ]
cmp -n 2097152 /tmp/data /vols/disk
memlane session ls
memlane vol ls
cat /tmp/serve.log
",
        device()
    )
}

/// Beside this program, where `--example rdma_liar` builds it.
fn liar() -> PathBuf {
    let own = std::env::current_exe().expect("this program");
    let folder = own.ancestors().nth(2).expect("target/PROFILE/deps/THIS");
    folder.join("examples/rdma_liar")
}

#[test]
#[ignore = "boots a guest: ./dev test-kernels"]
fn a_client_that_lies_loses_its_connection_and_nobody_else_notices() {
    let test = "rdma-liar";
    let Some(kernel) = kernel(test, &[]) else {
        return;
    };
    let folder = TempDir::new(test);
    let guest = guest(&kernel, &[], folder.path()).expect("programs of this machine");
    let liar = stripped(&liar(), folder.path());
    let guest = guest.program(&liar, "/opt/rdma_liar").expect("the liar");
    let outcome = guest.start(&story()).finish();
    assert_well(&outcome);
    println!("{}", outcome.console);
}
