//! The store under the state machine: a rebuildable index of the records, and the snapshot files that are, with the log,
//! the durable truth it is rebuilt from.
//!
//! Read in this order: [`engine`] says what an ordered key space of bytes must promise; [`memory`] is the plainest engine
//! that keeps those promises, [`fjall`] the default one, [`sled`] the other; [`directory`] opens them and lets
//! one take the place of another.
//! Above them, [`overlay`] is the replicated state that apply works on, and [`records`] what the node does with it.
//! [`snapshot`] is the other half: files that hold a whole state. [`dump`] tells a state as text, the same on every replica; [`describe`] is what it says of each row.

pub mod describe;
pub mod directory;
pub mod dump;
pub mod engine;
pub mod fjall;
mod layer;
pub mod memory;
pub mod overlay;
pub mod records;
pub mod sled;
pub mod snapshot;
mod watched;

#[cfg(test)]
mod tests;

/// Why the state can't be opened, flushed or replaced.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// The disk has no room for what is to be flushed.
    #[error("the disk has no room for the store")]
    NoRoom(#[source] std::io::Error),
    /// The engine holds something that can't be read.
    #[error("the store holds a value that can't be read")]
    Codec(#[from] crate::records::codec::CodecError),
}
