//! Semel (Latin: *once*) binds one caller intent to one durable outcome: a replicated idempotency store.

// The purity of `records` is checked by lints that are denied there alone.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod clock;
pub mod entropy;
#[cfg(feature = "server")]
pub mod fatal;
#[cfg(feature = "server")]
pub mod auth;
#[cfg(feature = "server")]
pub mod config;
pub mod fingerprint;
pub mod id;
pub mod json;
pub mod limits;
#[cfg(feature = "server")]
pub mod disk;
pub mod proto;
#[cfg(feature = "server")]
pub mod records;
pub mod refusal;
#[cfg(feature = "server")]
pub mod rpc;
#[cfg(feature = "server")]
pub mod store;
