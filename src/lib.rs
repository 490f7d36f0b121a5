//! Semel binds one caller intent to one durable outcome.

pub mod limits;
#[cfg(feature = "server")]
pub mod store;
pub mod proto;
#[cfg(feature = "server")]
pub mod rpc;
