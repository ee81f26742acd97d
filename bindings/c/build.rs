//! The name by which programs ask for the library: another one when the ABI changes so that old programs break.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmemlane.so.0");
}
