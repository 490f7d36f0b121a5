//! The generated code of the schema in `proto/`: the messages, and the client's side of the services.
//!
//! Only the edges (`rpc`, `http`, `client`) look in here; everything below them has types of its own, parsed once.

/// Package `semel.v1`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, rustdoc::all)]
pub mod v1 {
    tonic::include_proto!("semel.v1");
}

/// The schema as an encoded `FileDescriptorSet`, with its imports and comments.
pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/semel.bin"));
