//! Compiles the C shim, which holds what stable Rust cannot express (C-variadic
//! definitions, initial-exec thread-locals).

fn main() {
    println!("cargo::rerun-if-changed=src/shim.c");
    cc::Build::new()
        .file("src/shim.c")
        .flag("-std=gnu11")
        .warnings(true)
        .compile("memlane_shim");
    // The libc crate leaves this to std when another crate of the build wants its feature `std`; here there is no std.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    // Before glibc 2.34, dlsym was in a library of its own.
    println!(
        "cargo::rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed,-l:libdl.so.2,--pop-state"
    );
    // Report undefined symbols here, not in every program that is started with the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
