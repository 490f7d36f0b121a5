//! Semel (Latin: *once*) binds one caller intent to one durable outcome: a replicated idempotency store.

// First, for its macro.
#[cfg(not(feature = "planted"))]
#[macro_use]
mod planted;
#[cfg(feature = "planted")]
#[macro_use]
pub mod planted;

#[cfg(feature = "server")]
pub mod auth;
#[cfg(feature = "server")]
pub mod backup;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod console;
#[cfg(feature = "server")]
pub mod disk;
#[cfg(feature = "tower")]
pub mod door;
pub mod entropy;
#[cfg(feature = "server")]
pub mod fatal;
pub mod fingerprint;
#[cfg(test)]
mod fuzz;
#[cfg(feature = "server")]
pub mod http;
pub mod id;
pub mod json;
pub mod limits;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod net;
#[cfg(feature = "server")]
pub mod node;
pub mod problems;
pub mod proto;
#[cfg(feature = "server")]
pub mod raft;
#[cfg(feature = "server")]
pub mod records;
pub mod refusal;
#[cfg(feature = "server")]
pub mod rpc;
#[cfg(feature = "server")]
pub mod seal;
#[cfg(feature = "server")]
pub mod service;
#[cfg(feature = "server")]
pub mod store;
#[cfg(any(feature = "client", feature = "server"))]
pub mod tls;
#[cfg(feature = "server")]
pub mod traces;
#[cfg(feature = "tower")]
pub mod unidle;
#[cfg(feature = "server")]
pub mod wal;
#[cfg(feature = "server")]
pub mod work;

#[cfg(feature = "client")]
pub use client::Client;
