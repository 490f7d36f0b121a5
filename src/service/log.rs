//! What the service needs of the replicated log.

use std::sync::Arc;

use crate::{
    id::Time,
    records::{answer::Applied, command::Command},
    refusal::Refusal,
};

/// The replicated log, as the service uses it. What is proposed outlives its caller: dropping a future stops the waiting
/// alone.
pub trait Log: Send + Sync + 'static {
    /// Proposes commands in this order and waits until each is applied.
    fn propose(&self, commands: Vec<Arc<Command>>) -> impl Future<Output = Vec<Result<Applied, Refusal>>> + Send;

    /// Waits until the local state shows every command that was acknowledged before this call.
    fn barrier(&self) -> impl Future<Output = Result<(), Refusal>> + Send;

    /// Cluster time now: never below the last applied time.
    fn now(&self) -> Time;

    /// Waits until the applied time has reached `time`, with an empty entry where none comes by itself.
    fn tick_to(&self, time: Time) -> impl Future<Output = Result<(), Refusal>> + Send;
}
