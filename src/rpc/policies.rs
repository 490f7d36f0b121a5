//! The service `semel.v1.Policies` over [`Calls`].

use tonic::{Request, Response, Status};

use super::{Door, generated::policies_server::Policies, records::parts, status::status};
use crate::{
    proto::v1,
    service::{
        Calls,
        request::{GetPolicyRequest, SetPolicyRequest},
    },
};

#[tonic::async_trait]
impl<C: Calls> Policies for Door<C> {
    async fn get(&self, request: Request<v1::GetPolicyRequest>) -> Result<Response<v1::PolicyAnswer>, Status> {
        let (caller, message) = parts(request)?;
        let request = GetPolicyRequest::try_from(message).map_err(status)?;
        let answer = self.calls.get_policy(&caller, request).await.map_err(status)?;
        Ok(Response::new(answer.into()))
    }

    async fn set(&self, request: Request<v1::SetPolicyRequest>) -> Result<Response<v1::PolicyAnswer>, Status> {
        let (caller, message) = parts(request)?;
        let request = SetPolicyRequest::try_from(message).map_err(status)?;
        let answer = self.calls.set_policy(&caller, request).await.map_err(status)?;
        Ok(Response::new(answer.into()))
    }
}
