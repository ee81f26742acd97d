//! Compiles the shim against fio's own headers, where they can be found: `FIO_SRC`, or `fio-src` in the target folder,
//! where `./dev` puts the sources of the fio that is installed. They are under another licence and no part of memlane.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(fio_headers)");
    println!("cargo::rerun-if-env-changed=FIO_SRC");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/shim.c");
    // fio unloads an engine when its last job ends; threads of a session may not have ended by then.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let Some(fio) = headers() else {
        println!(
            "cargo::warning=no headers of fio: libmemlane_fio.so will be no engine (`./dev build` fetches them; or set FIO_SRC)"
        );
        println!("cargo::rustc-env=MEMLANE_FIO_HEADERS=");
        return;
    };
    println!("cargo::rustc-cfg=fio_headers");
    println!("cargo::rustc-env=MEMLANE_FIO_HEADERS={}", fio.display());
    println!(
        "cargo::rerun-if-changed={}",
        fio.join("ioengines.h").display()
    );
    let mut shim = cc::Build::new();
    shim.file("src/shim.c").include(&fio).flag("-std=gnu11");
    // fio's headers are not ours to tidy up.
    shim.warnings(true).extra_warnings(false);
    if fio.join("config-host.h").exists() {
        shim.define("MEMLANE_FIO_CONFIGURED", None);
    }
    shim.compile("memlane_fio_shim");
}

fn headers() -> Option<PathBuf> {
    let named = std::env::var_os("FIO_SRC").map(PathBuf::from);
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from);
    let above = out.iter().flat_map(|out| out.ancestors().skip(1).take(6));
    let fetched = above.map(|dir| dir.join("fio-src"));
    let is_fio = |dir: &PathBuf| Path::new(dir).join("ioengines.h").exists();
    named.into_iter().chain(fetched).find(is_fio)
}
