//! What is larger than an answer: bytes that are streamed from a node, and into one.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use futures_util::stream;
use http::{
    Method, Request, Response,
    header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST},
    request,
};
use http_body_util::{BodyExt, Empty, Full, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;

use super::{ANSWER_BYTES_MAX, Answer, CALL_TIMEOUT, CONNECT_TIMEOUT, Node};
use crate::{
    cli::failure::Failure,
    disk::{DiskError, File},
    json::Json,
    limits,
};

/// How long the other side may be silent while bytes are on their way.
const SILENCE: Duration = Duration::from_secs(30);
/// How long a node may look at what it was sent, before it answers.
const DIGESTION: Duration = Duration::from_secs(24 * 3600);

/// A connection that ends with this.
struct Open<B> {
    sender: hyper::client::conn::http1::SendRequest<B>,
    driver: JoinHandle<Result<(), hyper::Error>>,
}

impl<B> Drop for Open<B> {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Node {
    /// Posts a request, and hands over the bytes of its answer as they come.
    pub(in crate::cli) fn download(
        &self,
        path: &str,
        request: &Json,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let body = Bytes::from(request.to_text());
        run(async {
            let mut open = self.open::<Full<Bytes>>().await?;
            let request = self.head(Method::POST, path).header(CONTENT_TYPE, "application/json").body(Full::new(body));
            let mut response = self.sent(&mut open, request, CALL_TIMEOUT).await?;
            if response.status() != 200 {
                let (status, text) = self.collected(response).await?;
                return Err(self.refused(status, text)?);
            }
            loop {
                let next = tokio::time::timeout(SILENCE, response.frame()).await;
                match next.map_err(|_| self.unreachable("no bytes in time"))? {
                    None => return Ok(()),
                    Some(Err(error)) => return Err(self.unreachable(&format!("the connection broke: {error}"))),
                    Some(Ok(frame)) => {
                        if let Some(bytes) = frame.data_ref() {
                            take(bytes)?;
                        }
                    }
                }
            }
        })
    }

    /// Posts one line of JSON and the bytes of a file behind it, and gives the answer, however long the node takes to look
    /// at them. `told` hears how many bytes are on their way.
    pub(in crate::cli) fn upload(
        &self,
        path: &str,
        head: &Json,
        before: &[u8],
        file: Arc<dyn File>,
        told: impl FnMut(u64) + Send + 'static,
    ) -> Result<Answer, Failure> {
        let bytes = file.len().context("the backup")?;
        let line = Bytes::from([head.to_text().as_bytes(), b"\n", before].concat());
        let length = line.len() as u64 + bytes;
        let body = StreamBody::new(Box::pin(pieces(line, file, bytes, told)));
        run(async {
            let mut open = self.open().await?;
            let request = self.head(Method::POST, path).header(CONTENT_LENGTH, length).body(body);
            let response = self.sent(&mut open, request, DIGESTION).await?;
            let (status, text) = self.collected(response).await?;
            if status == 200 { self.read(status, text) } else { Err(self.refused(status, text)?) }
        })
    }

    /// The cluster that whoever listens here says it is of; none where nobody listens, or somebody else.
    pub(in crate::cli) fn cluster_id(&self) -> Option<String> {
        run(async {
            let mut open = self.open::<Empty<Bytes>>().await?;
            let request = self.head(Method::GET, "/healthz").body(Empty::new());
            let response = self.sent(&mut open, request, CONNECT_TIMEOUT).await?;
            let id = response.headers().get("semel-cluster-id").and_then(|id| id.to_str().ok());
            Ok(id.map(str::to_owned))
        })
        .unwrap_or_default()
    }

    async fn open<B>(&self) -> Result<Open<B>, Failure>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = self.connect().await?;
        let broken = |error: hyper::Error| self.unreachable(&format!("the connection broke: {error}"));
        let (sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        Ok(Open { sender, driver: tokio::spawn(driver) })
    }

    fn head(&self, method: Method, path: &str) -> request::Builder {
        let head = Request::builder().method(method).uri(path).header(HOST, self.authority());
        match &self.authorization {
            Some(authorization) => head.header(AUTHORIZATION, authorization),
            None => head,
        }
    }

    async fn sent<B>(
        &self,
        open: &mut Open<B>,
        request: http::Result<Request<B>>,
        at_most: Duration,
    ) -> Result<Response<Incoming>, Failure>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let unfit = |_| Failure::Usage("the token has characters that can't be sent".to_owned());
        let sent = open.sender.send_request(request.map_err(unfit)?);
        let answered = tokio::time::timeout(at_most, sent).await.map_err(|_| self.unreachable("no answer in time"))?;
        answered.map_err(|error| self.unreachable(&format!("the connection broke: {error}")))
    }

    async fn collected(&self, response: Response<Incoming>) -> Result<(u16, Bytes), Failure> {
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.unreachable(&format!("the connection broke: {error}")))?;
        Ok((status, body.to_bytes()))
    }

    fn refused(&self, status: u16, text: Bytes) -> Result<Failure, Failure> {
        Ok(Failure::Refused { problem: self.read(status, text)?.json, as_json: self.as_json })
    }
}

fn run<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    runtime.block_on(work)
}

/// The line, then the file, a piece at a time.
fn pieces(
    line: Bytes,
    file: Arc<dyn File>,
    bytes: u64,
    mut told: impl FnMut(u64) + Send + 'static,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, DiskError>> + Send {
    let begun = stream::iter([Ok(Frame::data(line))]);
    let file = stream::unfold(0, move |offset: u64| {
        let piece = (offset < bytes).then(|| {
            let mut piece = vec![0; (bytes - offset).min(limits::SNAPSHOT_PIECE_BYTES as u64) as usize];
            file.read_exact_at(&mut piece, offset).map(|()| Frame::data(Bytes::from(piece)))
        });
        let next = (offset + limits::SNAPSHOT_PIECE_BYTES as u64).min(bytes);
        told(next);
        async move { piece.map(|piece| (piece, next)) }
    });
    futures_util::StreamExt::chain(begun, file)
}
