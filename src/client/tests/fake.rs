//! A server that answers by a script.
#![expect(clippy::unwrap_used, reason = "the lint knows test functions alone, and this is what they share")]

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    net::TcpListener,
    runtime::{self, Runtime},
    sync::mpsc,
    time::sleep,
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    client::{Client, cluster::CLUSTER_ID_METADATA},
    proto::v1::{self, item::Command, item_answer::Answer},
    refusal::Code,
    rpc::generated::records_server::{Records, RecordsServer},
};

/// Whatever reached the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// An item of a session.
    Item(Command),
    /// A claim of its own: one that waits.
    Claim(v1::ClaimRequest),
    Investigate(v1::InvestigateRequest),
    Resolve(v1::ResolveRequest),
    List(v1::ListRequest),
    Watch(v1::WatchRequest),
}

/// What the server does about it.
#[derive(Clone, Debug)]
pub enum Reply {
    Item(Answer),
    /// The item's answer, so much later.
    Late(u64, Answer),
    /// The command is taken, and the connection breaks before the answer.
    Lose,
    /// The command is taken, and no answer ever comes.
    Silence,
    /// A waiting claim's answer, so much later.
    Claim(u64, v1::ClaimAnswer),
    Record(Box<v1::Record>),
    Owner(v1::OwnerAnswer),
    Status(Status),
    /// Pages, and then either the end of the stream or a broken connection.
    Pages(Vec<v1::ListAnswer>, bool),
    Changes(Vec<v1::WatchAnswer>),
}

type Script = dyn Fn(&Call, usize) -> Reply + Send + Sync;

/// The server's side of a test.
#[derive(Clone)]
pub struct Fake {
    script: Arc<Script>,
    seen: Arc<Mutex<Vec<Call>>>,
    frames: Arc<Mutex<Vec<usize>>>,
    timeouts: Arc<Mutex<Vec<String>>>,
    cluster_id: Arc<Mutex<Option<String>>>,
    follows: Arc<Mutex<Option<Option<String>>>>,
    sessions: Arc<Mutex<usize>>,
}

/// A running server. It ends when dropped, with all its connections.
pub struct Running {
    pub fake: Fake,
    pub address: SocketAddr,
    /// Of its own, so that ending it closes every connection as the end of a process does.
    runtime: Option<Runtime>,
}

impl Running {
    /// What it has seen so far, in order.
    pub fn seen(&self) -> Vec<Call> {
        self.fake.seen.lock().unwrap().clone()
    }

    /// What it has seen so far, by the names of the commands.
    pub fn names(&self) -> Vec<&'static str> {
        self.seen().iter().map(name).collect()
    }

    /// How many items came in each frame.
    pub fn frames(&self) -> Vec<usize> {
        self.fake.frames.lock().unwrap().clone()
    }

    /// The deadlines that came with calls of their own.
    pub fn timeouts(&self) -> Vec<String> {
        self.fake.timeouts.lock().unwrap().clone()
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on it doesn't lead: this one does, where it is known. What it may forward it answers all the same.
    pub fn follow(&self, leader: Option<String>) {
        *self.fake.follows.lock().unwrap() = Some(leader);
    }

    /// From now on it leads.
    pub fn lead(&self) {
        *self.fake.follows.lock().unwrap() = None;
    }

    /// How many sessions were opened.
    pub fn sessions(&self) -> usize {
        *self.fake.sessions.lock().unwrap()
    }

    pub fn set_cluster_id(&self, id: &str) {
        *self.fake.cluster_id.lock().unwrap() = Some(id.to_owned());
    }

    pub async fn client(&self) -> Client {
        Client::builder().endpoint(self.endpoint()).connect().await.expect("the server listens")
    }

    /// A client that loses patience fast.
    pub async fn hasty(&self) -> Client {
        let (deadline, attempt) = (Duration::from_millis(1500), Duration::from_millis(250));
        let builder = Client::builder().endpoint(self.endpoint()).deadline(deadline).attempt_deadline(attempt);
        builder.report_deadline(deadline).connect().await.expect("the server listens")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub fn name(call: &Call) -> &'static str {
    match call {
        Call::Item(Command::Claim(_)) => "claim",
        Call::Item(Command::Begin(_)) => "begin",
        Call::Item(Command::Renew(_)) => "renew",
        Call::Item(Command::Checkpoint(_)) => "checkpoint",
        Call::Item(Command::Complete(_)) => "complete",
        Call::Item(Command::Release(_)) => "release",
        Call::Item(Command::Suspend(_)) => "suspend",
        Call::Item(Command::Get(_)) => "get",
        Call::Claim(_) => "waiting claim",
        Call::Investigate(_) => "investigate",
        Call::Resolve(_) => "resolve",
        Call::List(_) => "list",
        Call::Watch(_) => "watch",
    }
}

/// Serves on a free port. The script gets the call and how many of its name came before.
pub async fn serve(script: impl Fn(&Call, usize) -> Reply + Send + Sync + 'static) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    serve_on(listener, script).await
}

/// Serves on a port that is bound already.
pub async fn serve_on(
    listener: TcpListener,
    script: impl Fn(&Call, usize) -> Reply + Send + Sync + 'static,
) -> Running {
    let fake = Fake {
        script: Arc::new(script),
        seen: Arc::default(),
        frames: Arc::default(),
        timeouts: Arc::default(),
        cluster_id: Arc::default(),
        follows: Arc::default(),
        sessions: Arc::default(),
    };
    let address = listener.local_addr().unwrap();
    let listener = listener.into_std().unwrap();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let service = RecordsServer::new(fake.clone());
    runtime.spawn(async move {
        let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
        let _ = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await;
    });
    Running { fake, address, runtime: Some(runtime) }
}

impl Fake {
    fn react(&self, call: Call) -> Reply {
        let mut seen = self.seen.lock().unwrap();
        let before = seen.iter().filter(|earlier| name(earlier) == name(&call)).count();
        seen.push(call.clone());
        drop(seen);
        (self.script)(&call, before)
    }

    /// Why a caller that wants no forwarding is refused, if it is.
    fn not_leading(&self) -> Option<(Status, v1::Refused)> {
        let leader = self.follows.lock().unwrap().clone()?;
        let mut metadata = std::collections::HashMap::new();
        metadata.extend(leader.clone().map(|endpoint| ("leader_endpoint".to_owned(), endpoint)));
        let details = ErrorDetails::with_error_info("unavailable", "semel", metadata);
        let status = Status::with_error_details(tonic::Code::Unavailable, "another node leads", details);
        let Answer::Refused(refused) = refused(Code::Unavailable) else { unreachable!("it is a refusal") };
        let leader = leader.map(|endpoint| v1::Leader { id: 2, endpoint });
        Some((status, v1::Refused { leader, ..refused }))
    }

    fn respond<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        if let Some(id) = &*self.cluster_id.lock().unwrap() {
            response.metadata_mut().insert(CLUSTER_ID_METADATA, id.parse().unwrap());
        }
        response
    }

    async fn call<T>(&self, call: Call, take: impl FnOnce(Reply) -> Option<T>) -> Result<Response<T>, Status> {
        match self.react(call) {
            Reply::Status(status) => Err(status),
            Reply::Silence => std::future::pending().await,
            reply => Ok(self.respond(take(reply).expect("the script's reply fits the call"))),
        }
    }
}

fn note_timeout<T>(fake: &Fake, request: &Request<T>) {
    if let Some(timeout) = request.metadata().get("grpc-timeout") {
        fake.timeouts.lock().unwrap().push(timeout.to_str().unwrap().to_owned());
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Records for Fake {
    type SessionStream = Answers<v1::SessionAnswer>;
    type ListStream = Answers<v1::ListAnswer>;
    type WatchIndeterminateStream = Answers<v1::WatchAnswer>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let at_leader = request.metadata().get("semel-no-forward").is_some_and(|value| value == "1");
        if at_leader && let Some((status, _)) = self.not_leading() {
            return Err(status);
        }
        *self.sessions.lock().unwrap() += 1;
        let mut frames = request.into_inner();
        let (answers, receiver) = mpsc::channel(64);
        let fake = self.clone();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = frames.next().await {
                fake.frames.lock().unwrap().push(frame.items.len());
                let mut now = Vec::new();
                for item in frame.items {
                    let answer = |answer| v1::SessionItemAnswer {
                        id: item.id,
                        answer: Some(v1::ItemAnswer { answer: Some(answer) }),
                    };
                    if at_leader && let Some((_, refused)) = fake.not_leading() {
                        now.push(answer(Answer::Refused(refused)));
                        continue;
                    }
                    match fake.react(Call::Item(item.item.unwrap().command.unwrap())) {
                        Reply::Item(own) => now.push(answer(own)),
                        Reply::Silence => {}
                        Reply::Lose => {
                            let _ = answers.send(Err(Status::unavailable("cut by the script"))).await;
                            return;
                        }
                        Reply::Late(ms, own) => {
                            let (answers, items) = (answers.clone(), vec![answer(own)]);
                            tokio::spawn(async move {
                                sleep(Duration::from_millis(ms)).await;
                                let _ = answers.send(Ok(v1::SessionAnswer { items })).await;
                            });
                        }
                        other => panic!("the script's reply {other:?} is none to an item"),
                    }
                }
                // Answers come in any order: here backwards.
                now.reverse();
                if !now.is_empty() && answers.send(Ok(v1::SessionAnswer { items: now })).await.is_err() {
                    return;
                }
            }
        });
        Ok(self.respond(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn claim(&self, request: Request<v1::ClaimRequest>) -> Result<Response<v1::ClaimAnswer>, Status> {
        note_timeout(self, &request);
        let call = Call::Claim(request.into_inner());
        let take = |reply| if let Reply::Claim(ms, answer) = reply { Some((ms, answer)) } else { None };
        let (ms, answer) = self.call(call, take).await?.into_inner();
        sleep(Duration::from_millis(ms)).await;
        Ok(self.respond(answer))
    }

    async fn investigate(&self, request: Request<v1::InvestigateRequest>) -> Result<Response<v1::Record>, Status> {
        note_timeout(self, &request);
        let take = |reply| if let Reply::Record(record) = reply { Some(*record) } else { None };
        self.call(Call::Investigate(request.into_inner()), take).await
    }

    async fn resolve(&self, request: Request<v1::ResolveRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        let take = |reply| if let Reply::Owner(answer) = reply { Some(answer) } else { None };
        self.call(Call::Resolve(request.into_inner()), take).await
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let take = |reply| {
            let Reply::Pages(pages, broken) = reply else { return None };
            let end = broken.then(|| Err(Status::unavailable("cut by the script")));
            Some(Box::pin(tokio_stream::iter(pages.into_iter().map(Ok).chain(end))) as Self::ListStream)
        };
        self.call(Call::List(request.into_inner()), take).await
    }

    async fn watch_indeterminate(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchIndeterminateStream>, Status> {
        let take = |reply| {
            let Reply::Changes(changes) = reply else { return None };
            Some(Box::pin(tokio_stream::iter(changes.into_iter().map(Ok))) as Self::WatchIndeterminateStream)
        };
        self.call(Call::Watch(request.into_inner()), take).await
    }

    async fn begin(&self, _: Request<v1::BeginRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        Err(by_session())
    }

    async fn renew(&self, _: Request<v1::RenewRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        Err(by_session())
    }

    async fn checkpoint(&self, _: Request<v1::CheckpointRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        Err(by_session())
    }

    async fn complete(&self, _: Request<v1::CompleteRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        Err(by_session())
    }

    async fn release(&self, _: Request<v1::ReleaseRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        Err(by_session())
    }

    async fn suspend(&self, _: Request<v1::SuspendRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        Err(by_session())
    }

    async fn get(&self, _: Request<v1::GetRequest>) -> Result<Response<v1::Record>, Status> {
        Err(by_session())
    }

    async fn batch(&self, _: Request<v1::BatchRequest>) -> Result<Response<v1::BatchAnswer>, Status> {
        Err(by_session())
    }

    async fn forget(&self, _: Request<v1::ForgetRequest>) -> Result<Response<v1::OwnerAnswer>, Status> {
        Err(by_session())
    }

    async fn history(&self, _: Request<v1::HistoryRequest>) -> Result<Response<v1::HistoryAnswer>, Status> {
        Err(by_session())
    }
}

fn by_session() -> Status {
    Status::unimplemented("the client sends this by its session")
}

/// What a server that has nothing special to say answers to an item: every claim is granted for 30 s.
pub fn usual(call: &Call) -> Reply {
    Reply::Item(match call {
        Call::Item(Command::Claim(request)) => Answer::Claim(granted(request, 7, 30_000)),
        Call::Item(Command::Begin(_)) => Answer::Begin(owned(30_000)),
        Call::Item(Command::Renew(_)) => Answer::Renew(owned(30_000)),
        Call::Item(Command::Checkpoint(_)) => Answer::Checkpoint(owned(30_000)),
        Call::Item(Command::Complete(_)) => Answer::Complete(state(v1::State::Completed)),
        Call::Item(Command::Release(_)) => Answer::Release(state(v1::State::Absent)),
        Call::Item(Command::Suspend(_)) => Answer::Suspend(state(v1::State::Indeterminate)),
        Call::Item(Command::Get(request)) => Answer::Get(v1::Record {
            record: request.record.clone(),
            state: v1::State::Indeterminate.into(),
            ..v1::Record::default()
        }),
        other => panic!("nothing is usual about {other:?}"),
    })
}

/// The grant of a claim.
pub fn granted(request: &v1::ClaimRequest, fence: u64, lease_ms: u32) -> v1::ClaimAnswer {
    let mut answer = v1::ClaimAnswer {
        attempt_id: request.attempt_id.clone().unwrap_or_default(),
        fence: Some(fence),
        attempt: Some(1),
        lease_ms: Some(lease_ms),
        downstream_key: Some("sml_downstream".to_owned()),
        ..v1::ClaimAnswer::default()
    };
    answer.set_answer(v1::Answer::New);
    answer.set_phase(if request.staged() { v1::Phase::Staged } else { v1::Phase::Begun });
    answer
}

pub fn owned(lease_ms: u32) -> v1::OwnerAnswer {
    v1::OwnerAnswer { lease_ms: Some(lease_ms), ..state(v1::State::InProgress) }
}

pub fn state(state: v1::State) -> v1::OwnerAnswer {
    v1::OwnerAnswer { state: state.into(), ..v1::OwnerAnswer::default() }
}

/// A refusal of an item.
pub fn refused(code: Code) -> Answer {
    Answer::Refused(v1::Refused {
        code: code.as_str().to_owned(),
        retryable: code.retryable(),
        effect: v1::Effect::Unspecified.into(),
        ..v1::Refused::default()
    })
}

/// A refusal of a call of its own.
pub fn refused_call(code: Code, retry_after_ms: Option<u64>) -> Status {
    let mut details = ErrorDetails::with_error_info(code.as_str(), "semel", std::collections::HashMap::new());
    if let Some(ms) = retry_after_ms {
        details.set_retry_info(Some(Duration::from_millis(ms)));
    }
    Status::with_error_details(code.grpc(), "by the script", details)
}
