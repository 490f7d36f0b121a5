//! The HTTP door: JSON over the same calls as the gRPC door, on one port with it; and the operators' port.
//!
//! [`client`] is the clients' port, [`admin`] and [`operations`] the operators', [`serve`] accepts connections for either,
//! and `connection` knows what one is doing. A body is read
//! within bounds (`body`), its JSON becomes a message (`read`), the message is judged and asked as at the gRPC door, the
//! answer becomes JSON (`write`), a refusal a problem (`problem`).

pub mod admin;
mod body;
pub mod client;
mod connection;
mod moment;
pub mod operations;
pub(crate) mod problem;
mod read;
pub mod serve;
mod watch;
mod words;
mod write;

#[cfg(test)]
mod tests;
