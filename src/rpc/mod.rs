//! The gRPC door: generated services over the same calls as the HTTP door.

pub mod codec;

/// The server's side of the services in package `semel.v1`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, rustdoc::all)]
pub mod generated {
    include!(concat!(env!("OUT_DIR"), "/server/semel.v1.rs"));
}
