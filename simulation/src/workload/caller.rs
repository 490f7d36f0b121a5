//! A client process: sends calls with the library, and records each before it is sent and after it is answered.

use std::{collections::VecDeque, future::Future, rc::Rc};

use rand::{Rng, rngs::SmallRng};
use semel::{Client, client::Error, proto::v1};
use tokio::time::Instant;

use super::{REMEMBERED_MAX, Setting, draw};
use crate::{
    fault::FaultKind,
    history::{Answered, Call, Name},
};

/// A client process.
pub struct Caller {
    pub(super) setting: Rc<Setting>,
    pub(super) rng: SmallRng,
    pub(super) client: Client,
    pub(super) number: u16,
    /// How many attempts it has begun.
    attempts: u32,
    /// Old requests, with the time at which they were sent first.
    pub(super) remembered: VecDeque<(Instant, Name, Call)>,
    /// Until when most of what it does is about hot keys.
    hot_until: Option<Instant>,
    /// When the next burst of expiries is due.
    next_burst: Option<Instant>,
}

impl Caller {
    /// A process with nothing behind it.
    pub fn new(setting: Rc<Setting>, number: u16) -> Result<Self, Error> {
        let rng = setting.options.rng(&format!("caller {number}"));
        let client = setting.client(number)?;
        Ok(Self {
            setting,
            rng,
            client,
            number,
            attempts: 0,
            remembered: VecDeque::new(),
            hot_until: None,
            next_burst: None,
        })
    }

    /// The process that takes the place of one that died. Ids are never used again.
    pub fn reborn(self) -> Result<Self, Error> {
        let client = (self.setting.connect)(self.number).connect_lazy()?;
        Ok(Self { client, remembered: VecDeque::new(), ..self })
    }

    /// Ends in good order.
    pub async fn close(self) {
        self.client.close().await;
    }

    /// A record to do something with.
    pub fn name(&mut self) -> Name {
        let now = Instant::now();
        if self.hot_until.is_none_or(|until| now >= until) {
            self.hot_until = None;
            if self.setting.fires(FaultKind::HotKey, &mut self.rng) {
                self.hot_until = Some(now + std::time::Duration::from_secs(2));
            }
        }
        let hot = self.rng.random_ratio(if self.hot_until.is_some() { 19 } else { 6 }, 20);
        draw::name(&self.setting.options, hot, &mut self.rng)
    }

    /// A new attempt's id.
    pub fn attempt_id(&mut self, variant: u8) -> String {
        self.attempts += 1;
        draw::attempt_id(self.number, self.attempts, variant)
    }

    /// Whether a burst of expiries is due.
    pub fn bursts(&mut self) -> bool {
        let rate = self.setting.options.rate(FaultKind::ExpiryBurst);
        // One client's business.
        if rate == 0 || self.number != 0 || !(self.setting.is_faulty)() {
            return false;
        }
        let every = std::time::Duration::from_millis(60_000 / u64::from(rate));
        let now = Instant::now();
        let due = *self.next_burst.get_or_insert(now + every / 4);
        if now < due {
            return false;
        }
        self.next_burst = Some(now + every);
        true
    }

    /// Keeps a request, to send it again some time.
    pub fn remember(&mut self, name: &Name, call: Call) {
        if self.remembered.len() == REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back((Instant::now(), name.clone(), call));
    }

    /// Records a call around its sending.
    pub async fn recorded<T>(
        &self,
        name: &Name,
        call: Call,
        send: impl Future<Output = Result<T, Error>>,
        answered: impl FnOnce(&T) -> Answered,
    ) -> Result<T, Error> {
        let (history, watch) = (&self.setting.history, &self.setting.watch);
        let id = history.invoked(self.number, name.clone(), call, watch.now());
        let result = send.await;
        let told = match &result {
            Ok(answer) => answered(answer),
            Err(error) => Answered::of_error(error),
        };
        history.returned(id, told, watch.now());
        result
    }

    /// Sends a recorded call, whatever it is; what is remembered is sent again by this.
    pub async fn send(&self, name: &Name, call: Call) -> Answered {
        let client = &self.client;
        let owner = |answer: &v1::OwnerAnswer| Answered::Owner(*answer);
        let record = |record: &v1::Record| Answered::Record(Box::new(record.clone()));
        match call.clone() {
            Call::Claim(request) => {
                let answered = |answer: &v1::ClaimAnswer| Answered::Claim(Box::new(answer.clone()));
                told(self.recorded(name, call, client.claim(*request), answered).await, answered)
            }
            Call::Begin(request) => told(self.recorded(name, call, client.begin(request), owner).await, owner),
            Call::Renew(request) => told(self.recorded(name, call, client.renew(request), owner).await, owner),
            Call::Checkpoint(request) => {
                told(self.recorded(name, call, client.checkpoint(request), owner).await, owner)
            }
            Call::Complete(request) => told(self.recorded(name, call, client.complete(request), owner).await, owner),
            Call::Release(request) => told(self.recorded(name, call, client.release(request), owner).await, owner),
            Call::Suspend(request) => told(self.recorded(name, call, client.suspend(request), owner).await, owner),
            Call::Resolve(request) => told(self.recorded(name, call, client.resolve(*request), owner).await, owner),
            Call::Forget(request) => told(self.recorded(name, call, client.forget(request), owner).await, owner),
            Call::Get(request) => told(self.recorded(name, call, client.get(request), record).await, record),
            Call::Investigate(request) => {
                told(self.recorded(name, call, client.investigate(request), record).await, record)
            }
            Call::History(request) => {
                let answered = |answer: &v1::HistoryAnswer| Answered::History(answer.clone());
                told(self.recorded(name, call, client.history(request), answered).await, answered)
            }
            Call::SetPolicy(request) => {
                let answered = |answer: &v1::PolicyAnswer| Answered::Policy(Box::new(*answer));
                told(self.recorded(name, call, client.set_policy(*request), answered).await, answered)
            }
            Call::Run => Answered::Not,
        }
    }

    /// Sends it, and now and then the same again: at once, or after the answer.
    pub async fn send_and_repeat(&mut self, name: &Name, call: Call) -> Answered {
        let setting = self.setting.clone();
        let repeats = setting.fires(FaultKind::DuplicateRequest, &mut self.rng);
        let at_once = self.rng.random::<bool>();
        self.remember(name, call.clone());
        if !repeats {
            return self.send(name, call).await;
        }
        if at_once {
            let (first, _) = tokio::join!(self.send(name, call.clone()), self.send(name, call));
            return first;
        }
        let first = self.send(name, call.clone()).await;
        self.send(name, call).await;
        first
    }

    /// Claims; none where no answer came.
    pub async fn claim(&mut self, name: &Name, request: v1::ClaimRequest) -> Option<v1::ClaimAnswer> {
        match self.send_and_repeat(name, Call::Claim(Box::new(request))).await {
            Answered::Claim(answer) => Some(*answer),
            _ => None,
        }
    }

    /// Reads.
    pub async fn get(&mut self, name: &Name) -> Option<v1::Record> {
        let request = v1::GetRequest { record: Some(name.to_id()), with_outcome: Some(true) };
        match self.send(name, Call::Get(request)).await {
            Answered::Record(record) => Some(*record),
            _ => None,
        }
    }

    /// Reads what happened.
    pub async fn history_of(&mut self, name: &Name) {
        let request = v1::HistoryRequest { record: Some(name.to_id()), ..v1::HistoryRequest::default() };
        self.send(name, Call::History(request)).await;
    }

    /// Erases an outcome.
    pub async fn forget(&mut self, name: &Name, request: v1::ForgetRequest) {
        self.send_and_repeat(name, Call::Forget(request)).await;
    }

    /// Changes a policy.
    pub async fn set_policy(&self, name: &Name, policy: v1::Policy) -> Option<v1::PolicyAnswer> {
        let request = v1::SetPolicyRequest {
            tenant: Some(name.tenant.clone()),
            operation: Some(name.operation.clone()).filter(|operation| !operation.is_empty()),
            policy: Some(policy),
            remove: Vec::new(),
        };
        match self.send(name, Call::SetPolicy(Box::new(request))).await {
            Answered::Policy(answer) => Some(*answer),
            _ => None,
        }
    }
}

fn told<T>(result: Result<T, Error>, answered: impl FnOnce(&T) -> Answered) -> Answered {
    match &result {
        Ok(answer) => answered(answer),
        Err(error) => Answered::of_error(error),
    }
}
