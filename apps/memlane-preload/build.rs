//! Compiles the C shim, which holds what stable Rust cannot express (C-variadic
//! definitions, initial-exec thread-locals).

fn main() {
    println!("cargo::rerun-if-changed=src/shim.c");
    let mut shim = cc::Build::new();
    // The loader looks a name up once, not once for its calls and once for its address.
    shim.file("src/shim.c").flags(["-std=gnu11", "-fno-plt"]);
    shim.warnings(true);
    if std::env::var_os("CARGO_FEATURE_FAULTS").is_some() {
        shim.define("SEARCH_ALWAYS", None);
    }
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        println!("cargo::rerun-if-changed=src/alone/load.c");
        // Nothing in it may become a call of something else.
        shim.file("src/alone/load.c")
            .flag("-ffreestanding")
            .flag("-fno-stack-protector");
        // In a static Go program, this is where the library begins.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-e,memlane_begin");
    }
    shim.compile("memlane_shim");
    // C's start files refer to four names that few programs have: the loader would look for each in all libraries.
    println!("cargo::rustc-cdylib-link-arg=-nostartfiles");
    // The libc crate leaves this to std when another crate of the build wants its feature `std`; here there is no std.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    println!("cargo::rerun-if-changed=src/far.ld");
    let script = std::path::absolute("src/far.ld").expect("a path of the package");
    println!("cargo::rustc-cdylib-link-arg=-T");
    println!("cargo::rustc-cdylib-link-arg={}", script.display());
    // Report undefined symbols here, not in every program that is started with the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
