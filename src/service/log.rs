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

    /// Waits until the local state shows every command that was acknowledged before this call. Answers the cluster time
    /// then.
    fn barrier(&self) -> impl Future<Output = Result<Time, Refusal>> + Send;

    /// Refuses, naming who leads where that is known, unless this node does.
    fn leading(&self) -> Result<(), Refusal>;

    /// Whether this node reaches too few others for anybody to lead them and it.
    fn is_cut_off(&self) -> bool;

    /// Whether this node has not heard of who leads for so long that it may have missed that a token was revoked.
    fn is_out_of_touch(&self) -> bool;

    /// Cluster time, as well as this node knows it without asking: never below the last applied time, and never ahead of
    /// the leader's.
    fn now(&self) -> Time;

    /// Cluster time now, asked of the leader where this node has not heard of it lately.
    fn time(&self) -> impl Future<Output = Result<Time, Refusal>> + Send;

    /// Waits until the applied time has reached `time`, with an empty entry where none comes by itself.
    fn tick_to(&self, time: Time) -> impl Future<Output = Result<(), Refusal>> + Send;
}
