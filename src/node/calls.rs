//! The calls of a node, each counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::touch::Touch;
use crate::{
    auth::{Caller, Method, Rated, RequestRates},
    id::{ClusterId, Time},
    limits,
    metrics::Metrics,
    raft::Consensus,
    records::{answer::Applied, command::Command, state::State},
    refusal::{Code, Leader, Refusal},
    service::{
        Calls, Changes, Log, Service, StreamPlace,
        answer::*,
        request::{Command as Item, *},
    },
    traces,
};

/// Consensus as the service uses it.
pub struct ConsensusLog {
    consensus: Consensus,
    metrics: Arc<Metrics>,
    /// The leader's time when this node last asked for it.
    heard: Mutex<Option<(Time, tokio::time::Instant)>>,
    /// How members' ports for clients are spoken to.
    scheme: &'static str,
    touch: Arc<Touch>,
}

impl ConsensusLog {
    fn new(consensus: Consensus, metrics: Arc<Metrics>, is_encrypted: bool) -> Self {
        let scheme = if is_encrypted { "https" } else { "http" };
        let touch = Touch::new(consensus.clone());
        Self { consensus, metrics, heard: Mutex::new(None), scheme, touch }
    }

    /// The leader's time, gone on by this node's clock from when it was heard; none where that is too long ago.
    fn heard(&self) -> Option<Time> {
        let (time, at) = (*self.heard.lock())?;
        let since = at.elapsed();
        let lately = since <= Duration::from_millis(limits::LEADER_TIME_MS_MAX);
        lately.then(|| time.plus_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Log for ConsensusLog {
    async fn propose(&self, commands: Vec<Arc<Command>>) -> Vec<Result<Applied, Refusal>> {
        if !self.consensus.leads() {
            self.metrics.forwarded_commands.inc_by(commands.len() as u64);
        }
        self.consensus.propose_many(commands).await
    }

    async fn barrier(&self) -> Result<Time, Refusal> {
        self.consensus.read_barrier().await?;
        let now = self.consensus.now();
        *self.heard.lock() = Some((now, tokio::time::Instant::now()));
        Ok(now)
    }

    fn leading(&self) -> Result<(), Refusal> {
        if self.consensus.leads() {
            return Ok(());
        }
        let status = self.consensus.status();
        let leader = status.members.iter().find(|member| Some(member.node_id) == status.leader_id).map(|member| {
            let endpoint = format!("{}://{}", self.scheme, member.member.client_addr);
            Box::new(Leader { id: member.node_id, endpoint })
        });
        let detail = match leader {
            Some(_) => "another node leads, and the request is not to be forwarded",
            None => "no leader is known here, and the request is not to be forwarded",
        };
        Err(Refusal { leader, ..Refusal::new(Code::Unavailable, detail) })
    }

    fn is_cut_off(&self) -> bool {
        !self.consensus.hears_quorum()
    }

    fn is_out_of_touch(&self) -> bool {
        self.touch.is_lost()
    }

    fn now(&self) -> Time {
        self.consensus.now()
    }

    async fn time(&self) -> Result<Time, Refusal> {
        if self.consensus.leads() {
            return Ok(self.consensus.now());
        }
        match self.heard() {
            Some(time) => Ok(time.max(self.consensus.now())),
            None => self.barrier().await,
        }
    }

    async fn tick_to(&self, time: Time) -> Result<(), Refusal> {
        self.consensus.tick_to(time).await.map(|_| ())
    }
}

/// The calls of a node.
pub struct NodeCalls {
    consensus: Consensus,
    pub(super) service: Service<ConsensusLog>,
    pub(super) metrics: Arc<Metrics>,
    /// Whether it is in touch with its cluster.
    pub(super) touch: Arc<Touch>,
    rated: Rated,
    /// Whether the node is about to stop: nobody new should come.
    is_leaving: AtomicBool,
}

impl NodeCalls {
    /// `is_encrypted`: whether clients reach members by TLS. `rates`: how many calls a caller may make.
    pub(super) fn new(consensus: Consensus, metrics: Arc<Metrics>, is_encrypted: bool, rates: RequestRates) -> Self {
        let log = ConsensusLog::new(consensus.clone(), Arc::clone(&metrics), is_encrypted);
        let touch = Arc::clone(&log.touch);
        let service = Service::new(Arc::new(log), consensus.records(), Arc::clone(consensus.keys()));
        Self { consensus, service, metrics, touch, rated: Rated::new(rates), is_leaving: AtomicBool::new(false) }
    }

    fn count<T>(
        &self,
        method: Method,
        began: Instant,
        answer: &Result<T, Refusal>,
        word: impl FnOnce(&T) -> &'static str,
    ) {
        match answer {
            Ok(answer) => {
                let word = word(answer);
                traces::answered(word);
                self.metrics.answered(method, word, began.elapsed());
            }
            Err(refusal) => {
                traces::answered(refusal.code.as_str());
                self.metrics.refused(method, refusal.code, began.elapsed());
            }
        }
    }
}

fn claim_word(answer: &ClaimAnswer) -> &'static str {
    match answer.found {
        Found::New(_) => "new",
        Found::InProgress { .. } => "in_progress",
        Found::Completed(_) => "completed",
        Found::Conflict { .. } => "conflict",
        Found::Indeterminate { .. } => "indeterminate",
        Found::Expired { .. } => "expired",
    }
}

fn owner_method(kind: OwnerKind) -> Method {
    match kind {
        OwnerKind::Begin => Method::Begin,
        OwnerKind::Renew => Method::Renew,
        OwnerKind::Checkpoint => Method::Checkpoint,
        OwnerKind::Complete => Method::Complete,
        OwnerKind::Release => Method::Release,
        OwnerKind::Suspend => Method::Suspend,
    }
}

fn item_method(item: &Result<Item, Refusal>) -> Method {
    match item {
        Ok(Item::Claim(_)) => Method::Claim,
        Ok(Item::Owner(owner)) => owner_method(owner.action.kind()),
        Ok(Item::Get(_)) => Method::Get,
        Err(_) => Method::Batch,
    }
}

/// Calls that differ in their types alone: asked of the service, and counted.
macro_rules! counted {
    ($($call:ident($Request:ty) -> $Answer:ty, $Method:ident;)*) => {
        $(async fn $call(&self, caller: &Caller, request: $Request) -> Result<$Answer, Refusal> {
            let began = Instant::now();
            let answer = match self.rated.admit(caller) {
                Ok(()) => self.service.$call(caller, request).await,
                Err(refusal) => Err(refusal),
            };
            self.count(Method::$Method, began, &answer, |_| "ok");
            answer
        })*
    };
}

impl Calls for NodeCalls {
    async fn claim(&self, caller: &Caller, request: ClaimRequest) -> Result<ClaimAnswer, Refusal> {
        let began = Instant::now();
        let answer = match self.rated.admit(caller) {
            Ok(()) => self.service.claim(caller, request).await,
            Err(refusal) => Err(refusal),
        };
        self.count(Method::Claim, began, &answer, claim_word);
        answer
    }

    async fn owner(&self, caller: &Caller, request: OwnerRequest) -> Result<OwnerAnswer, Refusal> {
        let (began, method) = (Instant::now(), owner_method(request.action.kind()));
        self.rated.note(caller);
        let answer = self.service.owner(caller, request).await;
        self.count(method, began, &answer, |answer| answer.state.as_str());
        answer
    }

    async fn batch(&self, caller: &Caller, mut request: BatchRequest) -> Result<BatchAnswer, Refusal> {
        let began = Instant::now();
        let methods: Vec<Method> = request.items.iter().map(item_method).collect();
        // Each as it would be by itself.
        for item in &mut request.items {
            match item {
                Ok(Item::Owner(_)) => self.rated.note(caller),
                Ok(Item::Claim(_) | Item::Get(_)) => {
                    if let Err(refusal) = self.rated.admit(caller) {
                        *item = Err(refusal);
                    }
                }
                Err(_) => {}
            }
        }
        let answer = self.service.batch(caller, request).await;
        match &answer {
            Ok(answer) => {
                for (method, item) in methods.into_iter().zip(&answer.items) {
                    self.count(method, began, item, |item| match item {
                        ItemAnswer::Claim(claim) => claim_word(claim),
                        ItemAnswer::Owner(_, owner) => owner.state.as_str(),
                        ItemAnswer::Get(_) => "ok",
                    });
                }
            }
            Err(refusal) => self.metrics.refused(Method::Batch, refusal.code, began.elapsed()),
        }
        answer
    }

    counted! {
        get(GetRequest) -> Record, Get;
        list(ListRequest) -> ListAnswer, List;
        investigate(InvestigateRequest) -> Record, Investigate;
        resolve(ResolveRequest) -> OwnerAnswer, Resolve;
        forget(ForgetRequest) -> OwnerAnswer, Forget;
        history(HistoryRequest) -> HistoryAnswer, History;
        watch(WatchRequest) -> Changes, WatchIndeterminate;
        get_policy(GetPolicyRequest) -> PolicyAnswer, GetPolicy;
        set_policy(SetPolicyRequest) -> PolicyAnswer, SetPolicy;
        create_token(CreateTokenRequest) -> TokenAnswer, CreateToken;
        list_tokens(ListTokensRequest) -> ListTokensAnswer, ListTokens;
        revoke_token(RevokeTokenRequest) -> TokenAnswer, RevokeToken;
        audit(AuditRequest) -> AuditAnswer, Audit;
    }

    fn end_waits(&self) {
        self.service.end_waits();
    }

    fn stream(&self, caller: &Caller) -> Result<Option<StreamPlace>, Refusal> {
        self.service.stream(caller)
    }

    fn sessions(&self, opened: i64) {
        self.metrics.sessions.inc_by(opened);
    }

    fn leading(&self) -> Result<(), Refusal> {
        self.service.leading()
    }

    fn cluster_id(&self) -> Option<ClusterId> {
        self.service.cluster_id()
    }
}

impl NodeCalls {
    /// Refuses with why claims can't be proposed, if they can't.
    pub(super) async fn ready(&self) -> Result<(), Refusal> {
        let unready = |detail: &'static str| Err(Refusal::new(Code::Unavailable, detail));
        if self.is_leaving.load(Ordering::Acquire) {
            return unready("the node is stopping");
        }
        if self.service.cluster_id().is_none() {
            return unready("the cluster is not formed yet");
        }
        if self.consensus.records().read().ended().is_some() {
            return unready("this cluster's writes were ended for good by its final backup");
        }
        if let Some(full) = self.consensus.lacks_room() {
            return Err(full);
        }
        self.consensus.unlocked()?;
        let barrier = self.consensus.read_barrier();
        let passed = tokio::time::timeout(Duration::from_millis(limits::READY_MS), barrier).await;
        passed.unwrap_or_else(|_| unready("no leader has answered in time"))
    }

    /// From now on the node is not ready: it is about to stop.
    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    /// How many claims wait on this node now.
    pub fn waiting(&self) -> usize {
        self.service.waiting()
    }
}
