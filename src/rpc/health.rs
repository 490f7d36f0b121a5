//! `grpc.health.v1.Health`: whether this node serves, as load balancers ask it.

use std::{pin::Pin, time::Duration};

use futures_util::{Stream, stream};
use tokio::time::sleep;
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server::Health,
};

use super::Door;
use crate::{limits, service::Calls};

/// The services whose health can be asked for; the empty name is the node as a whole.
const SERVICES: [&str; 3] = ["", "semel.v1.Records", "semel.v1.Policies"];

/// The health of one node.
pub(super) struct NodeHealth<C>(pub(super) Door<C>);

impl<C: Calls> NodeHealth<C> {
    fn status(door: &Door<C>) -> ServingStatus {
        let serves = !door.stops() && door.calls.cluster_id().is_some();
        if serves { ServingStatus::Serving } else { ServingStatus::NotServing }
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl<C: Calls> Health for NodeHealth<C> {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("there is no such service"));
        }
        Ok(Response::new(response(Self::status(&self.0))))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            let unknown = stream::iter([Ok(response(ServingStatus::ServiceUnknown))]);
            return Ok(Response::new(Box::pin(unknown)));
        }
        // Told at once, then at every change; a node that stops says so and ends the stream.
        let changes = stream::unfold((self.0.clone(), None), |(door, told)| async move {
            if told.is_some() && door.stops() {
                return None;
            }
            loop {
                let status = Self::status(&door);
                if told != Some(status) {
                    return Some((Ok(response(status)), (door, Some(status))));
                }
                sleep(Duration::from_millis(limits::STREAM_JUDGED_MS)).await;
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
