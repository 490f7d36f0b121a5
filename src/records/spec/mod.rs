//! Executable specification of the records: a small language in which a scenario is told line by line, a world that runs
//! such lines on the pure core and checks every invariant after each, and a model of the contract that was written from
//! the contract alone.
//!
//! In reading order: `line` the language · `world` runs lines · `answer` puts answers into words · `scripts` the scenario
//! files of `testscripts/` · `model` the contract as a wall of ifs · `model_history` its timeline · `properties` random
//! lines, world against model.

mod answer;
mod line;
mod model;
mod model_history;
mod properties;
mod scripts;
mod world;
