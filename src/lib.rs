//! Semel (Latin: *once*) binds one caller intent to one durable outcome: a replicated idempotency store.

// The purity of `records` is checked by lints that are denied there alone.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[cfg(feature = "server")]
pub mod auth;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod disk;
pub mod entropy;
#[cfg(feature = "server")]
pub mod fatal;
pub mod fingerprint;
#[cfg(feature = "server")]
pub mod http;
pub mod id;
pub mod json;
pub mod limits;
#[cfg(feature = "server")]
pub mod metrics;
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
#[cfg(feature = "server")]
pub mod wal;

#[cfg(feature = "client")]
pub use client::Client;
