//! The gRPC door, and what both doors share: [`request`] judges the shape of a request, [`answer`] makes the messages.
//!
//! A message that came by JSON goes through the same two: the doors differ in spelling alone.

pub mod answer;
pub mod codec;
mod health;
mod policies;
mod records;
pub mod request;
mod session;
pub mod status;
mod tokens;
pub(crate) mod turn;

/// The server's side of the services in package `semel.v1`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, rustdoc::all)]
pub mod generated {
    include!(concat!(env!("OUT_DIR"), "/server/semel.v1.rs"));
}

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval},
};
use tonic::{Status, service::Routes};
use tonic_health::pb::health_server::HealthServer;
use tonic_types::StatusExt;

use crate::{
    auth::{Authenticator, Caller},
    limits,
    proto::DESCRIPTOR,
    refusal::{Code, Refusal},
    service::{Calls, Changes, StreamPlace, answer::WatchAnswer, request::WatchRequest},
};
use generated::{policies_server::PoliciesServer, records_server::RecordsServer, tokens_server::TokensServer};
use health::NodeHealth;

/// What a door needs: the calls behind it, who may make them, and whether the node stops.
pub struct Door<C> {
    /// The calls.
    pub calls: Arc<C>,
    /// Judges credentials.
    pub auth: Arc<Authenticator>,
    /// True once the node stops: streams end then.
    pub stopping: watch::Receiver<bool>,
}

/// Stands among a request's extensions where its caller wants the leader's own answers: a stream outlives the leader that
/// it was opened at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoForward;

impl<C> Clone for Door<C> {
    fn clone(&self) -> Self {
        Self { calls: self.calls.clone(), auth: self.auth.clone(), stopping: self.stopping.clone() }
    }
}

impl<C: Calls> Door<C> {
    /// The caller as its credential stands now.
    pub(crate) fn judge_again(&self, caller: &Arc<Caller>) -> Result<Arc<Caller>, Refusal> {
        self.auth.judge_again(caller).map(Arc::new)
    }

    /// Whether the node stops.
    pub(crate) fn stops(&self) -> bool {
        *self.stopping.borrow()
    }

    /// A watch that also ends when the node stops or the caller's credential does.
    pub(crate) async fn watch(
        &self,
        caller: Arc<Caller>,
        request: WatchRequest,
    ) -> Result<impl Stream<Item = Result<WatchAnswer, Refusal>> + Send + use<C>, Refusal> {
        let place = self.calls.stream(&caller)?;
        let changes = self.calls.watch(&caller, request).await?;
        let mut judged = interval(Duration::from_millis(limits::STREAM_JUDGED_MS));
        judged.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let open = Open { door: self.clone(), caller, changes, judged, _place: place };
        Ok(stream::unfold(Some(open), |open| async {
            let mut open = open?;
            let item = open.next().await;
            let rest = item.is_ok().then_some(open);
            Some((item, rest))
        }))
    }

    /// The gRPC services: ours, health and reflection.
    pub fn routes(&self) -> Routes {
        let records = RecordsServer::new(self.clone())
            .max_decoding_message_size(limits::REQUEST_BYTES_MAX)
            .max_encoding_message_size(usize::MAX);
        let policies = PoliciesServer::new(self.clone()).max_decoding_message_size(limits::REQUEST_BYTES_MAX);
        let tokens = TokensServer::new(self.clone()).max_decoding_message_size(limits::REQUEST_BYTES_MAX);
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTOR)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .expect("the build made the descriptors");
        let health = HealthServer::new(NodeHealth(self.clone()));
        Routes::new(records)
            .add_service(policies)
            .add_service(tokens)
            .add_service(health)
            .add_service(reflection)
            .prepare()
    }
}

/// A watch that is open.
struct Open<C> {
    door: Door<C>,
    caller: Arc<Caller>,
    changes: Changes,
    judged: Interval,
    /// Among the streams of its tenant.
    _place: Option<StreamPlace>,
}

impl<C: Calls> Open<C> {
    /// The next change, or why there will be none.
    async fn next(&mut self) -> Result<WatchAnswer, Refusal> {
        loop {
            tokio::select! {
                change = self.changes.next() => {
                    return change.unwrap_or_else(|| Err(Refusal::new(Code::Unavailable, "the watch was broken off")));
                }
                _ = self.judged.tick() => {
                    if self.door.stops() {
                        let detail = "the node is stopping; watch from another one, from the last index seen";
                        return Err(Refusal::new(Code::Unavailable, detail));
                    }
                    self.caller = self.door.judge_again(&self.caller)?;
                    if self.caller.token_id().is_some() && self.door.auth.is_cut_off() {
                        let detail = "the node is cut off from its cluster; watch from another one";
                        return Err(Refusal::new(Code::Unavailable, detail));
                    }
                }
            }
        }
    }
}

/// A status of the transport as a refusal tells it: a message over the limit, a stream that broke.
pub(crate) fn told(own: Status) -> Status {
    if own.get_error_details().error_info().is_some() {
        return own;
    }
    match own.code() {
        tonic::Code::OutOfRange => status::status(too_large()),
        tonic::Code::Unimplemented => status::with_code(own.code(), Refusal::invalid(own.message().to_owned())),
        _ => own,
    }
}

/// What a request over the limit is refused with, at both doors.
pub(crate) fn too_large() -> Refusal {
    let max = limits::REQUEST_BYTES_MAX;
    Refusal::new(Code::RequestTooLarge, format!("the request is larger than {max} bytes; send less at once"))
}
