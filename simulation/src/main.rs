//! The product's own nodes and clients, three or five of them, in one process, from one seed: with a simulated network,
//! disk and clocks, under every fault of the model. Same seed, same bytes. README.md tells how to use it.
//!
//! # Reading order
//!
//! `cli`, `parent`, `report` (a process for each seed, and what it says) · `options`, `fault` (what a seed draws) ·
//! `history`, `ledger`, `log` (what a run leaves behind) · `workload` (the clients) · `world` (the run itself) · `spec` (the
//! contract) · `invariants`, `witness`, `wgl`, `checks` (what must hold) · `story` (how a failure is told) · `shrink` (a smaller
//! run that fails the same way).

mod checks;
mod cli;
mod fault;
mod history;
mod invariants;
mod ledger;
mod log;
#[cfg(test)]
mod made;
mod options;
mod parent;
#[cfg(feature = "planted")]
mod planted;
mod report;
mod shrink;
mod spec;
mod story;
mod wgl;
mod witness;
mod workload;
mod world;

/// A run allocates all the time, on one thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
