//! Streams that outlive their connections: a listing goes on from its last page, a watch from its last position.

use std::{future::Future, sync::Arc};

use tokio::time::{Instant, sleep, timeout};
use tonic::{Request, Response, Status, Streaming};

use super::{
    error::Error,
    leader::Node,
    link::{Link, ms},
    retry::Backoff,
};
use crate::proto::v1;

/// A listing, from [`Client::list`](super::Client::list).
///
/// ```no_run
/// # async fn example(semel: semel::Client) -> Result<(), semel::client::Error> {
/// use semel::proto::v1;
///
/// let indeterminate = Some(v1::State::Indeterminate.into());
/// let mut listing = semel.list(v1::ListRequest { state: indeterminate, ..Default::default() });
/// while let Some(page) = listing.next_page().await? {
///     println!("{} records as of position {}", page.records.len(), page.index);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Listing {
    link: Arc<Link>,
    request: v1::ListRequest,
    stream: Option<Streaming<v1::ListAnswer>>,
    complete: bool,
}

impl Listing {
    pub(super) fn new(link: Arc<Link>, request: v1::ListRequest) -> Self {
        Self { link, request, stream: None, complete: false }
    }

    /// The next page, `None` once the listing is complete. A page may be short or empty.
    ///
    /// # Errors
    /// If it can't be read; the next call goes on after the last page.
    pub async fn next_page(&mut self) -> Result<Option<v1::ListAnswer>, Error> {
        let give_up = self.link.deadline();
        let mut backoff = Backoff::default();
        while !self.complete {
            let error = match self.attempt().await {
                Ok(Some(page)) => {
                    self.complete = page.cursor.is_none();
                    self.request.cursor.clone_from(&page.cursor);
                    return Ok(Some(page));
                }
                // A stream that ends before the listing does goes on from the cursor.
                Ok(None) => continue_after(),
                Err(error) => error,
            };
            self.stream = None;
            let pause = backoff.pause(error.retry_after_ms());
            if !error.repeats_by_itself() || Instant::now() + pause >= give_up {
                return Err(error);
            }
            sleep(pause).await;
        }
        Ok(None)
    }

    async fn attempt(&mut self) -> Result<Option<v1::ListAnswer>, Error> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let list = |node: Arc<Node>, request| async move { node.calls().list(request).await };
                open(&self.link, &self.request, list).await?
            }
        };
        let page = next(&self.link, &mut stream).await?;
        self.stream = Some(stream);
        Ok(page)
    }
}

fn continue_after() -> Error {
    Error::Lost { endpoint: String::new(), detail: "the listing ended early".to_owned() }
}

/// Opens a stream. It carries no deadline: that would end the stream, not only its opening.
async fn open<Q, T, F>(
    link: &Link,
    message: &Q,
    rpc: impl FnOnce(Arc<Node>, Request<Q>) -> F,
) -> Result<Streaming<T>, Error>
where
    Q: Clone,
    F: Future<Output = Result<Response<Streaming<T>>, Status>>,
{
    let node = link.nodes.current();
    match timeout(link.options.attempt, rpc(node.clone(), link.options.request(message.clone()))).await {
        Ok(Ok(response)) => {
            link.cluster.check(response.metadata())?;
            Ok(response.into_inner())
        }
        Ok(Err(status)) => Err(link.failed(&node, &status)),
        Err(_) => Err(Error::TimedOut { waited_ms: u64::from(ms(link.options.attempt)) }),
    }
}

/// The next message, within the time of one attempt.
async fn next<T>(link: &Link, stream: &mut Streaming<T>) -> Result<Option<T>, Error> {
    match timeout(link.options.attempt, stream.message()).await {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(status)) => Err(link.failed(&link.nodes.current(), &status)),
        Err(_) => Err(Error::TimedOut { waited_ms: u64::from(ms(link.options.attempt)) }),
    }
}

/// A watch over the indeterminate records, from [`Client::watch`](super::Client::watch).
#[derive(Debug)]
pub struct Watch {
    link: Arc<Link>,
    request: v1::WatchRequest,
    stream: Option<Streaming<v1::WatchAnswer>>,
    backoff: Backoff,
}

impl Watch {
    pub(super) fn new(link: Arc<Link>, request: v1::WatchRequest) -> Self {
        Self { link, request, stream: None, backoff: Backoff::default() }
    }

    /// The changes of the next position; waits for as long as there are none. A connection that breaks is opened anew
    /// after the last position that came whole; where that is too long ago, the next message is a `reset`.
    ///
    /// # Errors
    /// If the service refuses it, or another cluster answers; connections that fail are tried again for ever.
    pub async fn changed(&mut self) -> Result<v1::WatchAnswer, Error> {
        loop {
            match self.attempt().await {
                Ok(Some(answer)) => {
                    self.backoff.reset();
                    if !answer.more {
                        self.request.from_index = Some(answer.index);
                    }
                    return Ok(answer);
                }
                Ok(None) => {}
                Err(error) if !error.retryable() => return Err(error),
                Err(error) => tracing::debug!(%error, "a watch is opened anew"),
            }
            self.stream = None;
            sleep(self.backoff.pause(None)).await;
        }
    }

    async fn attempt(&mut self) -> Result<Option<v1::WatchAnswer>, Error> {
        if self.stream.is_none() {
            let watch = |node: Arc<Node>, request| async move { node.waits().watch_indeterminate(request).await };
            self.stream = Some(open(&self.link, &self.request, watch).await?);
        }
        let stream = self.stream.as_mut().expect("opened just above, and only this method closes it");
        match stream.message().await {
            Ok(message) => Ok(message),
            Err(status) => Err(self.link.failed(&self.link.nodes.current(), &status)),
        }
    }
}
