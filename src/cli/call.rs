//! One HTTP/1.1 call to a node.

mod transfer;

use std::{
    fs, io,
    net::{IpAddr, ToSocketAddrs},
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::Instant};

use crate::{json::Json, net::Stream, tls::Trust};

use super::{args::Connection, failure::Failure};

/// How long a call may take beyond what it waits for on purpose.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before an unavailable service is asked again, where it names none.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The largest answer: a page of records with everything in it.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A node that can be called.
#[derive(Debug)]
pub(super) struct Node {
    host: String,
    port: u16,
    /// Of a node that is spoken to by TLS.
    trust: Option<Trust>,
    authorization: Option<String>,
    /// How long an unavailable service is asked again.
    timeout: Duration,
    /// How long one call may take beyond what it waits for on purpose.
    limit: Duration,
    as_json: bool,
}

impl Node {
    /// The node of these arguments.
    pub(super) fn of(connection: &Connection) -> Result<Self, Failure> {
        let usage = |text: &str| Failure::Usage(format!("the endpoint {text}, such as http://127.0.0.1:7171"));
        let uri: Uri = connection.endpoint.parse().map_err(|_| usage("must be a URL"))?;
        let trust = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(read_trust(connection)?),
            _ => return Err(usage("must be an http:// or https:// URL")),
        };
        if uri.path() != "/" && !uri.path().is_empty() || uri.query().is_some() {
            return Err(usage("must not have a path"));
        }
        let host = uri.host().ok_or_else(|| usage("must name a host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let authorization = connection.token.as_deref().map(read_token).transpose()?;
        if authorization.is_some() && trust.is_none() && !connection.insecure_plaintext_clients && !is_loopback(&host) {
            return Err(Failure::Usage(
                "the token would travel unencrypted; use https://, or a node on this machine, or say --insecure-plaintext-clients \
                 (--insecure-plaintext-admin) if everybody on the way may read it"
                    .to_owned(),
            ));
        }
        Ok(Self {
            host,
            port: uri.port_u16().unwrap_or(if trust.is_some() { 443 } else { 80 }),
            trust,
            authorization,
            timeout: Duration::from_millis(u64::from(connection.timeout)),
            limit: CALL_TIMEOUT,
            as_json: connection.json,
        })
    }

    /// A node that is called without credentials, and once: an answer comes within `limit` or not at all.
    /// `ca`: the authorities of an https:// node.
    pub(super) fn plain(endpoint: &str, ca: Option<String>, limit: Duration) -> Result<Self, Failure> {
        let connection = Connection {
            endpoint: endpoint.to_owned(),
            token: None,
            ca,
            cert: None,
            cert_key: None,
            insecure_plaintext_clients: false,
            timeout: 0,
            json: false,
        };
        Ok(Self { limit, ..Self::of(&connection)? })
    }

    /// The same, whose answers come within this time or not at all.
    pub(super) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Whether it would take a claim.
    pub(super) fn is_ready(&self) -> bool {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return false };
        let asked = async { tokio::time::timeout(self.limit, self.once(&Method::GET, "/readyz", Bytes::new())).await };
        matches!(runtime.block_on(asked), Ok(Ok((200, ..))))
    }

    /// Posts a request, which may wait for `wait_ms` on purpose, and gives the answer. While the service is unavailable
    /// and nothing was changed it is asked again.
    pub(super) fn post(&self, path: &str, request: &Json, wait_ms: u32) -> Result<Answer, Failure> {
        let body = Bytes::from(request.to_text());
        self.call(Method::POST, path, body, wait_ms)
    }

    /// Gets a path.
    pub(super) fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.call(Method::GET, path, Bytes::new(), 0)
    }

    fn call(&self, method: Method, path: &str, body: Bytes, wait_ms: u32) -> Result<Answer, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
        runtime.block_on(async {
            let began = Instant::now();
            loop {
                let limit = self.limit + Duration::from_millis(u64::from(wait_ms));
                let answered = tokio::time::timeout(limit, self.once(&method, path, body.clone())).await;
                let (status, retry_after, text) = answered.map_err(|_| self.unreachable("no answer in time"))??;
                let answer = self.read(status, text)?;
                if status == 200 {
                    return Ok(answer);
                }
                let effect = answer.json.member("effect").and_then(Json::as_str);
                let may_retry = status == 503 && effect == Some("none");
                let left = self.timeout.saturating_sub(began.elapsed());
                if may_retry && !left.is_zero() {
                    // One last time at the end, however long the service would like to be left alone.
                    tokio::time::sleep(retry_after.unwrap_or(RETRY_PAUSE).min(left)).await;
                    continue;
                }
                if may_retry {
                    return Err(Failure::Unavailable { problem: answer.json, as_json: self.as_json });
                }
                return Err(Failure::Refused { problem: answer.json, as_json: self.as_json });
            }
        })
    }

    /// A connection to the node, encrypted where it is spoken to so.
    async fn connect(&self) -> Result<Stream, Failure> {
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            match &self.trust {
                None => Ok(Box::new(stream) as Stream),
                Some(trust) => trust.connect(&self.host, stream).await.map(|stream| Box::new(stream) as Stream),
            }
        };
        let connected: Result<io::Result<Stream>, _> = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        let stream = connected.map_err(|_| self.unreachable("no connection in time"))?;
        stream.map_err(|error| self.unreachable(&error.to_string()))
    }

    /// Sends one request on a connection of its own, and reads the answer whole.
    pub(super) async fn exchange(
        &self,
        method: Method,
        path: &str,
        fields: HeaderMap,
        body: Bytes,
        title_case: bool,
    ) -> Result<Response<Bytes>, Failure> {
        let stream = self.connect().await?;
        let broken = |error: hyper::Error| self.unreachable(&format!("the connection broke: {error}"));
        let mut client = hyper::client::conn::http1::Builder::new();
        client.title_case_headers(title_case);
        let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.authority());
        if let Some(own) = request.headers_mut() {
            own.extend(fields);
        }
        let request = request.body(Full::new(body));
        let request = request.map_err(|_| Failure::Usage("there are characters that can't be sent".to_owned()))?;
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.unreachable(&format!("the connection broke: {error}")))?;
        connection.abort();
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// Status, Retry-After and body of one answer.
    async fn once(&self, method: &Method, path: &str, body: Bytes) -> Result<(u16, Option<Duration>, Bytes), Failure> {
        let mut fields = HeaderMap::new();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            let bad = |_| Failure::Usage("the token has characters that can't be sent".to_owned());
            fields.insert(AUTHORIZATION, HeaderValue::from_str(authorization).map_err(bad)?);
        }
        let (head, body) = self.exchange(method.clone(), path, fields, body, false).await?.into_parts();
        let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        Ok((head.status.as_u16(), seconds.map(|seconds| Duration::from_secs(seconds.into())), body))
    }

    fn read(&self, status: u16, text: Bytes) -> Result<Answer, Failure> {
        let json = Json::parse_envelope(&text).ok().filter(|json| matches!(json, Json::Object(_)));
        let is_ours = |json: &Json| status == 200 || json.member("code").is_some();
        let json = json.filter(is_ours).ok_or_else(|| {
            self.unreachable(&format!("HTTP {status} without an answer of Semel; is this the right port?"))
        })?;
        Ok(Answer { json, text })
    }

    fn unreachable(&self, why: &str) -> Failure {
        let scheme = if self.trust.is_some() { "https" } else { "http" };
        Failure::Unreachable(format!("{scheme}://{} is not reachable: {why}", self.authority()))
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// What the service answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// Parsed.
    pub(super) json: Json,
    /// As it came.
    pub(super) text: Bytes,
}

/// What an https:// node is met with.
fn read_trust(connection: &Connection) -> Result<Trust, Failure> {
    let Some(ca) = &connection.ca else {
        let text = "an https:// endpoint needs --ca FILE (SEMEL_CA): the authority that certifies the node";
        return Err(Failure::Usage(text.to_owned()));
    };
    let read = |path: &String| fs::read(path).with_context(|| path.clone());
    let authorities = read(ca)?;
    let shown = match (&connection.cert, &connection.cert_key) {
        (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
        _ => None,
    };
    let trust = Trust::new(&authorities, shown.as_ref().map(|(cert, key)| (cert.as_slice(), key.as_slice())));
    trust.map(|trust| trust.speaking(&[b"http/1.1"])).map_err(|error| Failure::Usage(error.to_string()))
}

impl Answer {
    /// Leaves this member out of what is shown.
    pub(super) fn hide(&mut self, name: &str) {
        if let Json::Object(members) = &mut self.json {
            members.retain(|(own, _)| own != name);
        }
        self.text = Bytes::from(self.json.to_text());
    }
}

fn read_token(argument: &str) -> Result<String, Failure> {
    Ok(format!("Bearer {}", secret(argument)?))
}

/// A token as it was given, or from the file that was.
pub(super) fn secret(argument: &str) -> Result<String, Failure> {
    let token = match argument.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).with_context(|| format!("the token file {path}"))?,
        None => argument.to_owned(),
    };
    let token = token.trim();
    if token.is_empty() {
        return Err(Failure::Usage("the token is empty".to_owned()));
    }
    Ok(token.to_owned())
}

fn is_loopback(host: &str) -> bool {
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let found = (host, 0).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    !found.is_empty() && found.iter().all(|address| address.ip().is_loopback())
}
