//! The door in front of a service of the same process: a layer for axum, tonic, and whatever else is a tower service of
//! HTTP requests.
//!
//! ```no_run
//! # #[cfg(feature = "server")]
//! async fn make_order() -> &'static str {
//!     "made once for each Idempotency-Key"
//! }
//!
//! # #[cfg(feature = "server")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, routing::post};
//! use semel::door::{Door, IdempotencyLayer, Settings, engine};
//!
//! let store = engine::patience(semel::Client::builder().endpoint("http://127.0.0.1:7171")).connect_lazy()?;
//! let door = Door::new(store, Settings::default());
//! let app: Router = Router::new()
//!     .route("/orders", post(make_order))
//!     .layer(IdempotencyLayer::new(door));
//! # Ok(()) }
//! ```
//!
//! What stands inside of the layer runs once for each key; what stands outside (authorization, above all) runs for replays
//! too. The handler finds the fence in `Semel-Fence` and a key for whoever it calls in `Semel-Downstream-Key`. It runs in a
//! task of its own: a caller that leaves doesn't end it. A handler that panics leaves the key indeterminate.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderName, Request, Response, request};
use hyper::body::Body as HttpBody;
use tower::{Layer, Service};

use super::{
    body::{self, Body, BoxError},
    engine::{self, Door, Intent, Who},
    grpc,
    problem::Problem,
    replay::OWN_PREFIX,
    route::Routes,
    upstream::{Failure, Upstream, Way},
};

type Asked = dyn Fn(&request::Parts) -> Result<Who, Problem> + Send + Sync;

/// Puts a door in front of services.
#[derive(Clone)]
pub struct IdempotencyLayer {
    door: Door,
    routes: Arc<Routes>,
    who: Arc<Asked>,
}

impl IdempotencyLayer {
    /// This door: a key is looked at in POST and PATCH where there is one.
    pub fn new(door: Door) -> Self {
        Self { door, routes: Arc::default(), who: Arc::new(|_| Ok(Who::default())) }
    }

    /// With routes.
    pub fn routes(self, routes: Routes) -> Self {
        Self { routes: Arc::new(routes), ..self }
    }

    /// With this way to say whose a request is. Default: the store's own tenant, and no principal.
    ///
    /// Whatever it reads must have been checked by then: by a layer outside of this one.
    pub fn who(self, who: impl Fn(&request::Parts) -> Result<Who, Problem> + Send + Sync + 'static) -> Self {
        Self { who: Arc::new(who), ..self }
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotent<S>;

    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent { layer: self.clone(), inner }
    }
}

/// A service behind a door.
#[derive(Clone)]
pub struct Idempotent<S> {
    layer: IdempotencyLayer,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // Replays need no inner service: whether it is ready is asked when something is to be sent to it.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (layer, mut inner) = (self.layer.clone(), self.inner.clone());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let route = layer.routes.find(&head.method, head.uri.path());
            let is_grpc = grpc::is_grpc(&head.headers);
            let keyed = match engine::judge(route, &head.method, &head.headers) {
                Ok(Some(keyed)) => keyed,
                Ok(None) => {
                    poll_fn(|context| inner.poll_ready(context)).await?;
                    let request = Request::from_parts(onward(&head), body::boxed(body));
                    return Ok(inner.call(request).await?.map(body::boxed));
                }
                Err(problem) => return Ok(layer.tell(&problem, is_grpc)),
            };
            let mut body = body::boxed(body);
            let read = async { Ok(((layer.who)(&head)?, layer.door.spool(route, &mut body).await?)) };
            let (who, body) = match read.await {
                Ok(read) => read,
                Err(problem) => return Ok(layer.tell(&problem, is_grpc)),
            };
            let intent = Intent { route, keyed, who, head: &head, onward: onward(&head), body };
            let response = layer.door.answer(intent, InProcess(inner)).await;
            Ok(if is_grpc { grpc::told(response) } else { response })
        })
    }
}

impl IdempotencyLayer {
    fn tell(&self, problem: &Problem, is_grpc: bool) -> Response<Body> {
        let response = self.door.tell(problem);
        if is_grpc { grpc::told(response) } else { response }
    }
}

/// The same head without what only the door may say.
fn onward(head: &request::Parts) -> request::Parts {
    let mut onward = head.clone();
    let own: Vec<HeaderName> =
        head.headers.keys().filter(|name| name.as_str().starts_with(OWN_PREFIX)).cloned().collect();
    own.iter().for_each(|name| drop(onward.headers.remove(name)));
    onward
}

/// A service as the door knows it: ready before anything begins, called once.
struct InProcess<S>(S);

impl<S, R> Upstream for InProcess<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Way = Ready<S>;

    async fn open(&mut self) -> Result<Ready<S>, String> {
        let mut service = self.0.clone();
        let ready = poll_fn(|context| service.poll_ready(context)).await;
        ready.map_err(|error| error.into().to_string())?;
        Ok(Ready(service))
    }
}

/// A service that has said that it is ready.
struct Ready<S>(S);

impl<S, R> Way for Ready<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async fn send(mut self, request: Request<Bytes>) -> Result<Response<Body>, Failure> {
        let answered = self.0.call(request.map(body::full)).await;
        answered.map(|response| response.map(body::boxed)).map_err(|error| Failure::Lost(error.into().to_string()))
    }
}
