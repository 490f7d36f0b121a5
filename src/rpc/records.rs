//! The service `semel.v1.Records` over [`Calls`].

use std::{pin::Pin, sync::Arc};

use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status, Streaming};

use super::{Door, NoForward, generated::records_server::Records, session, status::status, turn};
use crate::{
    auth::Caller,
    net::Retires,
    proto::v1,
    refusal::Refusal,
    service::{Calls, answer::ListAnswer, request::*},
};

/// Messages of a stream.
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Answers one call: the message becomes a request, is asked, and the answer becomes a message.
macro_rules! answer {
    ($door:expr, $request:expr, $Request:ty, $call:ident) => {
        answer!($door, $request, $Request, $call, |_| 0)
    };
    // With how many bytes of JSON the message holds.
    ($door:expr, $request:expr, $Request:ty, $call:ident, $json_bytes:expr) => {{
        let (caller, message) = parts($request)?;
        let turn = turn::of(json_bytes(&message, $json_bytes)).await;
        let request = <$Request>::try_from(message).map_err(status)?;
        drop(turn);
        let answer = $door.calls.$call(&caller, request).await.map_err(status)?;
        Ok(Response::new(answer.into()))
    }};
}

/// Has the closure know what message it counts.
fn json_bytes<M>(message: &M, count: impl FnOnce(&M) -> usize) -> usize {
    count(message)
}

/// The caller, whom the gate has put there, and the message.
pub(super) fn parts<M>(request: Request<M>) -> Result<(Arc<Caller>, M), Status> {
    let (_, mut extensions, message) = request.into_parts();
    let caller = extensions.remove::<Arc<Caller>>();
    caller.map(|caller| (caller, message)).ok_or_else(|| status(crate::auth::caller::unauthenticated()))
}

#[tonic::async_trait]
impl<C: Calls> Records for Door<C> {
    type SessionStream = Messages<v1::SessionAnswer>;
    type ListStream = Messages<v1::ListAnswer>;
    type WatchIndeterminateStream = Messages<v1::WatchAnswer>;

    async fn claim(&self, request: Request<v1::ClaimRequest>) -> Result<Response<v1::ClaimAnswer>, Status> {
        answer!(self, request, ClaimRequest, claim, turn::claim_bytes)
    }

    async fn begin(&self, request: Request<v1::BeginRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        answer!(self, request, OwnerRequest, owner)
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        answer!(self, request, OwnerRequest, owner)
    }

    async fn checkpoint(&self, request: Request<v1::CheckpointRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        answer!(self, request, OwnerRequest, owner)
    }

    async fn complete(&self, request: Request<v1::CompleteRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        answer!(self, request, OwnerRequest, owner)
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        answer!(self, request, OwnerRequest, owner)
    }

    async fn suspend(&self, request: Request<v1::SuspendRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        answer!(self, request, OwnerRequest, owner)
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::Record>, Status> {
        answer!(self, request, GetRequest, get)
    }

    async fn batch(&self, request: Request<v1::BatchRequest>) -> Result<Response<v1::BatchAnswer>, Status> {
        answer!(self, request, BatchRequest, batch, |batch| batch.items.iter().map(turn::item_bytes).sum())
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let forwards = request.extensions().get::<NoForward>().is_none();
        let retires = request.extensions().get::<Retires>().copied();
        let (caller, frames) = parts(request)?;
        session::open(self.clone(), caller, forwards, retires, frames).map(Response::new).map_err(status)
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let (caller, message) = parts(request)?;
        let request = ListRequest::try_from(message).map_err(status)?;
        // The first page before the stream: a list that is refused is refused as any other call.
        let first = self.calls.list(&caller, request.clone()).await.map_err(status)?;
        let rest = self.clone().pages(caller, request, &first);
        let pages = stream::iter([Ok(first)]).chain(rest);
        Ok(Response::new(Box::pin(pages.map(|page| page.map(Into::into).map_err(status)))))
    }

    async fn investigate(&self, request: Request<v1::InvestigateRequest>) -> Result<Response<v1::Record>, Status> {
        answer!(self, request, InvestigateRequest, investigate)
    }

    async fn resolve(&self, request: Request<v1::ResolveRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        answer!(self, request, ResolveRequest, resolve)
    }

    async fn forget(&self, request: Request<v1::ForgetRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        answer!(self, request, ForgetRequest, forget)
    }

    async fn history(&self, request: Request<v1::HistoryRequest>) -> Result<Response<v1::HistoryAnswer>, Status> {
        answer!(self, request, HistoryRequest, history)
    }

    async fn watch_indeterminate(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchIndeterminateStream>, Status> {
        let (caller, message) = parts(request)?;
        let request = WatchRequest::try_from(message).map_err(status)?;
        let changes = self.watch(caller, request).await.map_err(status)?;
        Ok(Response::new(Box::pin(changes.map(|change| change.map(Into::into).map_err(status)))))
    }
}

impl<C: Calls> Door<C> {
    /// The pages after the first, each asked for when the one before was taken.
    fn pages(
        self,
        caller: Arc<Caller>,
        request: ListRequest,
        first: &ListAnswer,
    ) -> impl Stream<Item = Result<ListAnswer, Refusal>> + Send + use<C> {
        stream::unfold(first.cursor.clone(), move |cursor| {
            let (door, caller, cursor) = (self.clone(), caller.clone(), cursor.clone());
            let request = ListRequest { cursor: cursor.clone(), ..request.clone() };
            async move {
                cursor?;
                let page = match door.judge_again(&caller) {
                    Ok(caller) => door.calls.list(&caller, request).await,
                    Err(refusal) => Err(refusal),
                };
                let next = page.as_ref().ok().and_then(|page| page.cursor.clone());
                Some((page, next))
            }
        })
    }
}
