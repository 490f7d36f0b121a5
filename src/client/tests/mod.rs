//! The client against a server that answers by a script: what it sends when replies are lost, late or refused.

mod fake;
mod owning;
mod reconciling;
mod transport;
