//! A plain HTTP/JSON caller: what any language would send.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};

use crate::node::CALLER_TOKEN;

/// Makes calls. Clones share connections.
#[derive(Clone)]
pub struct Caller {
    http: Client<HttpConnector, Full<Bytes>>,
    token: &'static str,
}

/// An answer or refusal.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub json: Value,
}

/// No reply: the connection broke, or none came in time.
#[derive(Clone, Debug)]
pub struct Lost;

impl Reply {
    /// The claim's answer, or the refusal's code.
    pub fn word(&self) -> &str {
        self.json["answer"].as_str().or_else(|| self.json["code"].as_str()).unwrap_or("")
    }

    /// A decimal string.
    pub fn number(&self, name: &str) -> u64 {
        self.json[name].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

impl Caller {
    pub fn new() -> Self {
        Self { http: Client::builder(TokioExecutor::new()).build(HttpConnector::new()), token: CALLER_TOKEN }
    }

    /// The same with another token.
    pub fn with_token(&self, token: &'static str) -> Self {
        Self { http: self.http.clone(), token }
    }

    pub async fn post(&self, to: SocketAddr, path: &str, body: &Value, within: Duration) -> Result<Reply, Lost> {
        self.send(to, "POST", path, Some(body), within).await
    }

    pub async fn get(&self, to: SocketAddr, path: &str, within: Duration) -> Result<Reply, Lost> {
        self.send(to, "GET", path, None, within).await
    }

    /// The body of an answer that is no JSON; empty where none came.
    pub async fn text(&self, to: SocketAddr, path: &str, within: Duration) -> String {
        let token = format!("Bearer {}", self.token);
        let request = Request::builder().uri(format!("http://{to}{path}")).header(header::AUTHORIZATION, token);
        let request = request.body(Full::default()).unwrap();
        let answered =
            async { Some(self.http.request(request).await.ok()?.into_body().collect().await.ok()?.to_bytes()) };
        let body = tokio::time::timeout(within, answered).await.ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&body).into_owned()
    }

    async fn send(
        &self,
        to: SocketAddr,
        method: &str,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Result<Reply, Lost> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{to}{path}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .body(Full::new(body.map(|body| Bytes::from(body.to_string())).unwrap_or_default()))
            .unwrap();
        let answered = async {
            let response = self.http.request(request).await.map_err(|_| Lost)?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map_err(|_| Lost)?.to_bytes();
            Ok(Reply { status, json: serde_json::from_slice(&body).unwrap_or(Value::Null) })
        };
        tokio::time::timeout(within, answered).await.map_err(|_| Lost)?
    }
}

/// The record under this key.
pub fn record(key: &str) -> Value {
    json!({"operation": "charge.create", "key": key})
}
