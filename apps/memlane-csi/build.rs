//! Makes Rust of the files in `proto`, without protoc.

const FILES: [&str; 2] = ["proto/csi.proto", "proto/pluginregistration.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let described = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .compile_fds(described)?;
    Ok(())
}
