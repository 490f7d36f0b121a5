//! The Idempotency-Key door: what makes a service's requests safe to repeat without the service knowing.
//!
//! A request with a key is read whole and becomes a claim: method and path its operation, everything that makes one
//! request another its fingerprint. Whoever comes first runs, in a task of its own that no client's leaving ends; everybody
//! else gets what came of it, or is told why there is nothing to get. Where nobody knows what came of it, nothing is sent
//! again.
//!
//! # Reading order
//!
//! `key`, `prefer`, `route` (what is asked) · `identity`, `multipart` (what it is to the store) · `engine`, `work`,
//! `caller`, `counts` (who runs, and what becomes of it) · `upstream` (whoever does the work) · `replay`, `problem`, `body` (what is
//! answered) · `layer`, `grpc` (before a
//! service of the same process) · the proxy: `config`, `who`, `authorize`, `forward`, `connect`, `shared`, `proxy`, `metrics`,
//! `serving`, `inside`.

mod caller;
pub mod counts;
mod grpc;
mod work;

pub mod body;
pub mod engine;
pub mod identity;
pub mod key;
pub mod layer;
pub mod multipart;
pub mod prefer;
pub mod problem;
pub mod replay;
pub mod route;
pub mod upstream;

#[cfg(feature = "server")]
pub mod authorize;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod connect;
#[cfg(feature = "server")]
mod forward;
#[cfg(feature = "server")]
pub mod inside;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod proxy;
#[cfg(feature = "server")]
pub mod serving;
#[cfg(feature = "server")]
mod shared;
#[cfg(feature = "server")]
pub mod who;

pub use engine::{Door, Settings};
pub use layer::IdempotencyLayer;
