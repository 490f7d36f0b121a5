//! Executable specification of the records: a small language in which a scenario is told line by line, a world that runs
//! such lines on the pure core and checks every invariant after each, and a model of the contract that was written from
//! the contract alone.
//!
//! In reading order: `line` the language · `world` runs lines · `answer` puts answers into words · `scripts` the scenario
//! files of `testscripts/` · `model` the contract as a wall of ifs, with `model_policy`, `model_owner`, `model_history` ·
//! `properties` random lines, world against model · `bytes` the formats.

mod answer;
mod audit;
mod bytes;
mod line;
mod model;
mod model_history;
mod model_owner;
mod model_policy;
mod properties;
mod scripts;
mod world;
