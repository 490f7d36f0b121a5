//! The Idempotency-Key door as its callers and its upstreams see it: the proxy in this process, over real ports, before
//! upstreams that answer, refuse, reset, cut off, talk nonsense and hang.
#![allow(clippy::unwrap_used, reason = "the lint knows test functions alone, and this is what they share")]
#![allow(missing_docs, reason = "what the tests share is read where it stands")]

mod bounds;
mod certified;
mod conformance;
mod failures;
mod grpc;
mod keys;
mod layer;
mod measured;
mod multiplexed;
mod passing;
mod process;
mod replays;
mod reported;
mod secure;
mod setting;
mod upstream;
mod wire;

pub use setting::{Setting, until};
pub use upstream::{Answer, Upstream};
pub use wire::{Asked, Reply};
