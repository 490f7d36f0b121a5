//! Both doors over a real port, and a scripted service behind them: a case must be asked and answered alike.

mod alike;
mod connections;
mod encrypted;
mod idle;
mod leader;
mod measured;
mod misuse;
mod node;
mod random;
mod rates;
mod scripted;
mod session;
mod shapes;
mod tokens;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tonic::transport::Channel;

use super::{
    client::Clients,
    serve::{Bounds, serve},
};
use crate::{
    auth::Authenticator,
    json::Json,
    proto::v1::{policies_client::PoliciesClient, records_client::RecordsClient},
    rpc::Door,
};
use scripted::Scripted;

/// A server, and a client of each door.
struct Server {
    address: SocketAddr,
    calls: Arc<Scripted>,
    http: legacy::Client<legacy::connect::HttpConnector, Full<Bytes>>,
    records: RecordsClient<Channel>,
    policies: PoliciesClient<Channel>,
    stop: watch::Sender<bool>,
    served: JoinHandle<()>,
}

/// An answer by HTTP.
struct Reply {
    status: StatusCode,
    fields: HeaderMap,
    body: Bytes,
}

impl Reply {
    fn json(&self) -> Json {
        Json::parse(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Checks that this is a problem as every problem is, and gives its code.
    fn code(&self) -> String {
        assert_eq!(self.field("content-type"), "application/problem+json", "{:?}", self.body);
        let json = self.json();
        let text = |name: &str| json.member(name).and_then(Json::as_str).unwrap_or_default().to_owned();
        let code = crate::refusal::Code::parse(&text("code")).expect("a code of the table");
        assert_eq!(self.status.as_u16(), code.http());
        assert_eq!(json.member("status"), Some(&u32::from(code.http()).into()));
        assert_eq!(text("type"), crate::problems::url(code));
        assert_eq!(text("title"), code.title());
        assert!(!text("detail").is_empty());
        assert_eq!(text("effect"), code.effect().as_str());
        assert_eq!(json.member("retryable"), Some(&code.retryable().into()));
        assert_eq!(self.fields.contains_key("retry-after"), code.retryable());
        text("code")
    }
}

impl Server {
    async fn start() -> Server {
        Server::with(Authenticator::open()).await
    }

    async fn with(auth: Authenticator) -> Server {
        Server::bounded(
            auth,
            Bounds {
                connections_max: 64,
                per_address_max: 64,
                heads: Default::default(),
                idle: Duration::from_secs(300),
                unauthenticated: Some(Duration::from_secs(10)),
                answers_half_closed: false,
                drain: Duration::from_secs(4),
            },
        )
        .await
    }

    async fn bounded(auth: Authenticator, bounds: Bounds) -> Server {
        Self::limited(auth, bounds, Duration::from_secs(30)).await
    }

    async fn limited(auth: Authenticator, bounds: Bounds, body_idle: Duration) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopping) = watch::channel(false);
        let calls = Arc::new(Scripted::default());
        let door = Door { calls: calls.clone(), auth: Arc::new(auth), stopping: stopping.clone() };
        let clients = Clients::new(door, true).with_body_idle(body_idle);
        let answer = move |request, _| clients.clone().answer(request);
        let served = tokio::spawn(serve(Box::new(listener), bounds, None, answer, stopping));
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
        Server {
            address,
            calls,
            http: legacy::Client::builder(TokioExecutor::new()).build_http(),
            records: RecordsClient::new(channel.clone()),
            policies: PoliciesClient::new(channel),
            stop,
            served,
        }
    }

    async fn send(&self, verb: &str, path: &str, fields: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        let mut request = Request::builder().method(verb).uri(format!("http://{}{path}", self.address));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let (head, body) = self.http.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: head.status, fields: head.headers, body }
    }

    async fn post(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        self.send("POST", path, &[], body).await
    }
}
