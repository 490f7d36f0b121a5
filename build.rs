//! Compiles the schema in `proto/` without a `protoc` on the machine.
//!
//! Two passes: the messages and the client are in every build; the server's side only in builds that have one,
//! with a codec of its own, because a request that doesn't parse is the caller's fault and must be told so.

use std::{env, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["semel/v1/records.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("semel.bin"), prost::Message::encode_to_vec(&descriptors))?;
    // Ordered maps: the same answer is the same bytes, however often it is given.
    tonic_prost_build::configure().build_server(false).bytes(".").btree_map(".").compile_fds(descriptors.clone())?;
    if env::var_os("CARGO_FEATURE_SERVER").is_some() {
        let server = out.join("server");
        fs::create_dir_all(&server)?;
        tonic_prost_build::configure()
            .build_client(false)
            .codec_path("crate::rpc::codec::RequestCodec")
            .extern_path(".semel.v1", "crate::proto::v1")
            .out_dir(&server)
            .compile_fds(descriptors)?;
        // What nodes say to each other is no part of the public schema: it is in no descriptor that is served.
        let peer = out.join("peer");
        fs::create_dir_all(&peer)?;
        let descriptors = protox::compile(["semel/v1/peer.proto"], ["proto"])?;
        tonic_prost_build::configure().bytes(".").out_dir(&peer).compile_fds(descriptors)?;
    }
    Ok(())
}
