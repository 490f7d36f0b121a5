//! What the clients recorded: every call with its answer, in simulated time. A call that was given up, or whose caller
//! died, stays without an answer: it may have taken place or may yet.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use semel::{client::Error, proto::v1, refusal::Effect};

/// Simulated time since the beginning of the run, µs.
pub type Micros = u64;

/// What tells the simulated time.
#[derive(Clone)]
pub struct Watch(pub Arc<dyn Fn() -> Micros + Send + Sync>);

impl Watch {
    /// Now.
    pub fn now(&self) -> Micros {
        (self.0)()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({} µs)", self.now())
    }
}

/// A record, by its whole identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Whose.
    pub tenant: String,
    /// The caller's end user, may be empty.
    pub principal: String,
    /// Which operation.
    pub operation: String,
    /// The caller's key.
    pub key: String,
}

impl Name {
    /// The record of a request.
    pub fn of(id: &v1::RecordId) -> Self {
        Self {
            tenant: id.tenant.clone().unwrap_or_default(),
            principal: id.principal.clone().unwrap_or_default(),
            operation: id.operation.clone(),
            key: id.key.clone(),
        }
    }

    /// The record as a request names it.
    pub fn to_id(&self) -> v1::RecordId {
        v1::RecordId {
            tenant: Some(self.tenant.clone()),
            principal: Some(self.principal.clone()).filter(|principal| !principal.is_empty()),
            operation: self.operation.clone(),
            key: self.key.clone(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.tenant, self.operation, self.key)?;
        if self.principal.is_empty() { Ok(()) } else { write!(f, " of {}", self.principal) }
    }
}

/// What was asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Claim.
    Claim(Box<v1::ClaimRequest>),
    /// Begin.
    Begin(v1::BeginRequest),
    /// Renew.
    Renew(v1::RenewRequest),
    /// Checkpoint.
    Checkpoint(v1::CheckpointRequest),
    /// Complete.
    Complete(v1::CompleteRequest),
    /// Release.
    Release(v1::ReleaseRequest),
    /// Suspend.
    Suspend(v1::SuspendRequest),
    /// Get.
    Get(v1::GetRequest),
    /// Investigate.
    Investigate(v1::InvestigateRequest),
    /// Resolve.
    Resolve(Box<v1::ResolveRequest>),
    /// Forget.
    Forget(v1::ForgetRequest),
    /// History.
    History(v1::HistoryRequest),
    /// A change of a policy.
    SetPolicy(Box<v1::SetPolicyRequest>),
    /// The client library's own run of a handler: what it sends is its own business.
    Run,
}

impl Call {
    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Call::Claim(_) => "claim",
            Call::Begin(_) => "begin",
            Call::Renew(_) => "renew",
            Call::Checkpoint(_) => "checkpoint",
            Call::Complete(_) => "complete",
            Call::Release(_) => "release",
            Call::Suspend(_) => "suspend",
            Call::Get(_) => "get",
            Call::Investigate(_) => "investigate",
            Call::Resolve(_) => "resolve",
            Call::Forget(_) => "forget",
            Call::History(_) => "history",
            Call::SetPolicy(_) => "set_policy",
            Call::Run => "run",
        }
    }

    /// The fence that it carries.
    pub fn fence(&self) -> Option<u64> {
        match self {
            Call::Begin(request) => request.fence,
            Call::Renew(request) => request.fence,
            Call::Checkpoint(request) => request.fence,
            Call::Complete(request) => request.fence,
            Call::Release(request) => request.fence,
            Call::Suspend(request) => request.fence,
            _ => None,
        }
    }

    /// Whether it only reads.
    pub fn only_reads(&self) -> bool {
        matches!(self, Call::Get(_) | Call::History(_))
    }
}

/// What came of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Answered {
    /// Nothing yet, or never: the caller died.
    #[default]
    Not,
    /// Of a claim.
    Claim(Box<v1::ClaimAnswer>),
    /// Of an owner, a verdict, a forget.
    Owner(v1::OwnerAnswer),
    /// Of a get or an investigation.
    Record(Box<v1::Record>),
    /// Of a history.
    History(v1::HistoryAnswer),
    /// Of a policy.
    Policy(Box<v1::PolicyAnswer>),
    /// What the client library's run came to: a word, and the body of the outcome, where there is one.
    Ran(&'static str, Option<Vec<u8>>),
    /// Refused: nothing took place.
    Refused {
        /// The code.
        code: String,
        /// The position at which it was decided, where it came from the log.
        index: Option<u64>,
    },
    /// Nobody knows: it may have taken place, or may yet.
    Unknown(String),
}

impl Answered {
    /// What an error says.
    pub fn of_error(error: &Error) -> Self {
        match error {
            Error::Refused(refusal) if refusal.code.effect() == Effect::None => {
                Answered::Refused { code: refusal.code.as_str().to_owned(), index: refusal.index.map(|index| index.0) }
            }
            error if error.effect() == Effect::None => Answered::Refused { code: "not_sent".to_owned(), index: None },
            error => Answered::Unknown(error.to_string()),
        }
    }

    /// The position that it reflects.
    pub fn index(&self) -> Option<u64> {
        match self {
            Answered::Claim(answer) => Some(answer.index),
            Answered::Owner(answer) => Some(answer.index),
            Answered::Record(record) => Some(record.index),
            Answered::History(answer) => Some(answer.index),
            Answered::Policy(answer) => Some(answer.index),
            Answered::Refused { index, .. } => *index,
            Answered::Ran(..) | Answered::Not | Answered::Unknown(_) => None,
        }
    }

    /// Whether it is known what took place.
    pub fn is_known(&self) -> bool {
        !matches!(self, Answered::Not | Answered::Unknown(_))
    }

    /// The outcome that a claim or a get was shown.
    pub fn outcome(&self) -> Option<&v1::Outcome> {
        match self {
            Answered::Claim(answer) => answer.outcome.as_ref(),
            Answered::Record(record) => record.outcome.as_ref(),
            _ => None,
        }
    }
}

/// A call with all that is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Its place in the history.
    pub id: usize,
    /// Who called.
    pub client: u16,
    /// Of which record. For a policy the tenant, and the operation where it is one's.
    pub name: Name,
    /// What was asked.
    pub call: Call,
    /// When it was sent.
    pub invoked: Micros,
    /// When it was answered or given up; none: the caller died.
    pub returned: Option<Micros>,
    /// What came of it.
    pub answered: Answered,
}

impl Operation {
    /// The end of the time in which it took place, if it did: a call whose result nobody knows may take place for ever.
    pub fn ends(&self) -> Micros {
        if self.answered.is_known() { self.returned.unwrap_or(Micros::MAX) } else { Micros::MAX }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} {} {}", self.client, self.call.word(), self.name)?;
        if let Some(fence) = self.call.fence() {
            write!(f, " fence={fence}")?;
        }
        if let Call::Claim(request) = &self.call {
            let digest = request.fingerprints.first().map(|one| one.digest.first().copied().unwrap_or_default());
            write!(f, " fp={:02x} staged={}", digest.unwrap_or_default(), request.staged())?;
        }
        write!(f, " → {}", self.answered)
    }
}

impl fmt::Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answered::Not => write!(f, "never answered")?,
            Answered::Unknown(why) => write!(f, "unknown ({why})")?,
            Answered::Refused { code, .. } => write!(f, "refused {code}")?,
            Answered::Claim(answer) => {
                write!(f, "{}", answer.answer().as_str_name().trim_start_matches("ANSWER_").to_lowercase())?;
                if let Some(fence) = answer.fence {
                    write!(f, " fence={fence} attempt={}", answer.attempt())?;
                }
                if let Some(outcome) = &answer.outcome {
                    write!(f, " body={}", shown(outcome))?;
                }
            }
            Answered::Owner(answer) => write!(f, "{}", state(answer.state()))?,
            Answered::Record(record) => {
                write!(f, "{} fence={} version={}", state(record.state()), record.fence, record.version)?;
            }
            Answered::History(answer) => write!(f, "{} events", answer.events.len())?,
            Answered::Policy(_) => write!(f, "policy")?,
            Answered::Ran(word, _) => write!(f, "{word}")?,
        }
        match self.index() {
            Some(index) => write!(f, " @{index}"),
            None => Ok(()),
        }
    }
}

fn state(state: v1::State) -> String {
    state.as_str_name().trim_start_matches("STATE_").to_lowercase()
}

fn shown(outcome: &v1::Outcome) -> String {
    let body = outcome.body.as_deref().unwrap_or_default();
    if body.len() > 40 { format!("{} bytes", body.len()) } else { String::from_utf8_lossy(body).into_owned() }
}

/// Where the clients write. Clones write to the same history.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Vec<Operation>>>, Arc<AtomicU64>);

impl History {
    /// A call is about to be sent; its id is for [`returned`](Self::returned).
    pub fn invoked(&self, client: u16, name: Name, call: Call, now: Micros) -> usize {
        let mut all = self.lock();
        let id = all.len();
        all.push(Operation { id, client, name, call, invoked: now, returned: None, answered: Answered::Not });
        id
    }

    /// A call was answered, or given up.
    pub fn returned(&self, id: usize, answered: Answered, now: Micros) {
        self.1.fetch_add(u64::from(answered.is_known()), Ordering::Relaxed);
        let mut all = self.lock();
        (all[id].returned, all[id].answered) = (Some(now), answered);
    }

    /// What was recorded so far.
    pub fn all(&self) -> Vec<Operation> {
        self.lock().clone()
    }

    /// How many calls were answered so far.
    pub fn answered(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }

    /// How many calls there were so far.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Operation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use semel::refusal::{Code, Refusal};

    use super::*;

    #[test]
    fn what_was_not_learnt_stays_open_for_ever() {
        let history = History::default();
        let name = Name { tenant: "t".into(), operation: "o".into(), key: "k".into(), ..Name::default() };
        let died = history.invoked(1, name.clone(), Call::Run, 5);
        let lost = history.invoked(2, name.clone(), Call::Run, 6);
        history.returned(lost, Answered::of_error(&Error::TimedOut { waited_ms: 5 }), 9);
        let refused = history.invoked(2, name, Call::Run, 10);
        let refusal = Refusal::new(Code::StaleFence, "another one owns it");
        history.returned(refused, Answered::of_error(&Error::Refused(refusal)), 11);
        let all = history.all();
        assert_eq!((all[died].ends(), all[lost].ends(), all[refused].ends()), (Micros::MAX, Micros::MAX, 11));
        let unknown = Refusal::new(Code::ResultUnknown, "lost");
        assert!(!Answered::of_error(&Error::Refused(unknown)).is_known());
    }

    #[test]
    fn a_name_is_read_back_from_the_id_of_a_request() {
        let name = Name { tenant: "t".into(), principal: "p".into(), operation: "o".into(), key: "k".into() };
        assert_eq!(Name::of(&name.to_id()), name);
    }
}
