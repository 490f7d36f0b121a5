//! Executable specification of the records: a small language in which a scenario is told line by line, a world that runs
//! such lines on the pure core and checks every invariant after each.
//!
//! In reading order: `line` the language · `world` runs lines · `answer` puts answers into words · `scripts` the scenario
//! files of `testscripts/`.

mod answer;
mod line;
mod scripts;
mod world;
