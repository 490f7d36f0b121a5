//! Clusters of real processes, with everything done to them that happens to clusters. Each run keeps a ledger of what was
//! acknowledged and which effects happened, and ends with the nodes' contents compared byte for byte.
//!
//! `SEMEL_CLUSTER_ROUNDS` sets how often the repeated faults strike (a handful where it is not set).
#![allow(clippy::unwrap_used, reason = "the lint knows test functions alone, and this is what they share")]

mod caller;
mod clocks;
mod cluster;
mod disks;
mod full;
mod hostile;
mod kills;
mod ledger;
mod links;
mod members;
mod node;
mod partitions;
mod pauses;
mod planted;
#[path = "../ports/mod.rs"]
mod ports;
mod process;
mod rekeying;
mod restore;
mod rolling;
mod sealing;
mod shredding;

/// How often a repeated fault strikes.
fn rounds() -> u64 {
    std::env::var("SEMEL_CLUSTER_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}
