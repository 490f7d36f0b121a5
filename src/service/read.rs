//! Reading without executing: get and history.

use super::{
    Log,
    answer::{HistoryAnswer, HistoryEvent, Record},
    cursor::{Cursor, Place},
    node::{Service, Target, at},
    request::{GetRequest, HistoryRequest},
    view,
};
use crate::{
    auth::{Caller, Method},
    id::{Position, RecordId},
    records::{
        history::{self, HistoryEvent as StoredEvent, history},
        state::State,
    },
    refusal::{Code, Refusal},
    seal::Field,
};

impl<L: Log> Service<L> {
    pub(super) async fn do_get(&self, caller: &Caller, request: GetRequest) -> Result<Record, Refusal> {
        let id = self.authorize(caller, Method::Get, request.record)?;
        if request.with_outcome {
            caller.permit(Method::GetOutcome)?;
        }
        self.fetch(caller, id, request.with_outcome).await
    }

    /// Reads a record from the linearizable state.
    pub(super) async fn fetch(&self, caller: &Caller, id: RecordId, with_outcome: bool) -> Result<Record, Refusal> {
        let not_found = |index| at(index, Refusal::new(Code::NotFound, "nothing is recorded under this identity"));
        let Some(target) = self.known_target(id).await? else { return Err(not_found(self.position())) };
        self.settle(&target.record).await?;
        self.judge(caller, Some(&target.record.tenant))?;
        let state = self.records.read();
        let (index, now) = (state.globals().position, state.globals().time);
        let now = if planted!(FollowerJudgesLease) { now.max(self.log.now()) } else { now };
        let Some(head) = state.head(&target.record) else { return Err(not_found(index)) };
        let record = view::record(&*state, (&target.names, &target.record), &head, now, index, with_outcome)?;
        record.ok_or_else(|| not_found(index))
    }

    pub(super) async fn do_history(&self, caller: &Caller, request: HistoryRequest) -> Result<HistoryAnswer, Refusal> {
        let id = self.authorize(caller, Method::History, request.record)?;
        let Some(target) = self.known_target(id).await? else {
            return Ok(HistoryAnswer { events: Vec::new(), cursor: None, index: self.position() });
        };
        self.settle(&target.record).await?;
        self.judge(caller, Some(&target.record.tenant))?;
        let filter = target.record.record.0.to_vec();
        let skip = match &request.cursor {
            Some(text) => match Cursor::parse(text, &target.names, &filter)?.place {
                Place::Event(skip) => usize::try_from(skip).unwrap_or(usize::MAX),
                _ => return Err(super::cursor::invalid()),
            },
            None => 0,
        };
        let state = self.records.read();
        let (index, now) = (state.globals().position, state.globals().time);
        let head = state.head(&target.record);
        let rows = head.as_ref().map_or_else(Vec::new, |head| state.rows(&target.record, head));
        let events = history(head.as_deref(), &rows, now, state.globals());
        drop(state);
        let page = request.page_size as usize;
        let more = events.len() > skip.saturating_add(page);
        let shown = events.iter().skip(skip).take(page).map(|event| shown(&target, event)).collect::<Result<_, _>>()?;
        let next = Cursor { place: Place::Event((skip + page) as u64), filter: &filter };
        Ok(HistoryAnswer { events: shown, cursor: more.then(|| next.encode(&target.names)), index })
    }
}

fn shown(of: &Target, event: &StoredEvent) -> Result<HistoryEvent, Refusal> {
    let history::HistoryEvent { at, index, kind, actor, fence, detail, count, verdict } = event;
    let actor = actor.as_ref().map(|actor| of.names.opened_text(Field::Actor, &of.record, actor)).transpose()?;
    let mut words = Vec::new();
    if let Some(verdict) = verdict {
        words.push(verdict.as_str().to_owned());
    }
    if let Some(detail) = detail {
        let field = if *kind == "suspended" || *kind == "forgotten" { Field::Reason } else { Field::Evidence };
        words.push(of.names.opened_text(field, &of.record, detail)?);
    }
    if *count > 1 {
        words.push(format!("{count} times"));
    }
    let detail = (!words.is_empty()).then(|| words.join(": "));
    Ok(HistoryEvent { at: *at, index: Position(index.0), kind, actor, fence: *fence, detail })
}
