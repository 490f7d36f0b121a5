//! The service `semel.v1.Tokens` over [`Calls`].

use tonic::{Request, Response, Status};

use super::{Door, generated::tokens_server::Tokens, records::parts, status::status};
use crate::{
    proto::v1,
    service::{
        Calls,
        request::{CreateTokenRequest, ListTokensRequest, RevokeTokenRequest},
    },
};

#[tonic::async_trait]
impl<C: Calls> Tokens for Door<C> {
    async fn create(&self, request: Request<v1::CreateTokenRequest>) -> Result<Response<v1::TokenAnswer>, Status> {
        let (caller, message) = parts(request)?;
        let request = CreateTokenRequest::try_from(message).map_err(status)?;
        let answer = self.calls.create_token(&caller, request).await.map_err(status)?;
        Ok(Response::new(answer.into()))
    }

    async fn list(&self, request: Request<v1::ListTokensRequest>) -> Result<Response<v1::ListTokensAnswer>, Status> {
        let (caller, message) = parts(request)?;
        let request = ListTokensRequest::try_from(message).map_err(status)?;
        let answer = self.calls.list_tokens(&caller, request).await.map_err(status)?;
        Ok(Response::new(answer.into()))
    }

    async fn revoke(&self, request: Request<v1::RevokeTokenRequest>) -> Result<Response<v1::TokenAnswer>, Status> {
        let (caller, message) = parts(request)?;
        let request = RevokeTokenRequest::try_from(message).map_err(status)?;
        let answer = self.calls.revoke_token(&caller, request).await.map_err(status)?;
        Ok(Response::new(answer.into()))
    }
}
