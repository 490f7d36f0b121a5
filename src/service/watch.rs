//! Watching the indeterminate records: the whole set, then every change of it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use futures_util::stream;
use tokio::sync::watch;

use super::{
    Changes, Log,
    answer::{Record, WatchAnswer},
    events,
    list::lists,
    node::Service,
    request::WatchRequest,
    tenants::Tenants,
    view,
};
use crate::{
    auth::{Caller, Method, caller::forbidden},
    id::{Operation, Position, Tenant, Time},
    limits,
    records::{closing::is_closed, command::RecordRef, record::StateWord, state::State},
    refusal::Refusal,
    store::records::Records,
};

/// A watcher: whose records, and how far it has been told.
struct Watcher {
    caller: Caller,
    tenant: Tenant,
    operation: Option<Operation>,
    records: Arc<Records>,
    tenants: Arc<Tenants>,
    events: Arc<events::Events>,
    more: watch::Receiver<Position>,
    told: Position,
    /// Answers that wait to be sent.
    ready: VecDeque<WatchAnswer>,
    /// Where the sending of the whole set goes on, while it lasts.
    whole: Option<Whole>,
}

/// The sending of a whole set, page by page, as of one position.
struct Whole {
    as_of: Position,
    /// Which of the lists that hold them, and behind which of its records.
    place: (usize, Option<(Time, RecordRef)>),
    is_first: bool,
}

impl Whole {
    fn new(as_of: Position) -> Self {
        Self { as_of, place: (0, None), is_first: true }
    }
}

impl<L: Log> Service<L> {
    pub(super) async fn do_watch(&self, caller: &Caller, request: WatchRequest) -> Result<Changes, Refusal> {
        caller.permit(Method::WatchIndeterminate)?;
        let tenant = caller.tenant(request.tenant.as_ref())?;
        if let Some(operation) = &request.operation {
            caller.authorize(Method::WatchIndeterminate, request.tenant.as_ref(), operation)?;
        }
        self.log.barrier().await?;
        self.judge(caller, Some(&tenant))?;
        let more = self.events.listen();
        let position = self.position();
        let resumed = request.from_index.filter(|from| *from <= position && self.events.after(*from).is_some());
        let watcher = Watcher {
            caller: caller.clone(),
            tenant,
            operation: request.operation,
            records: Arc::clone(&self.records),
            tenants: Arc::clone(&self.tenants),
            events: Arc::clone(&self.events),
            more,
            told: resumed.unwrap_or(position),
            ready: VecDeque::new(),
            whole: resumed.is_none().then(|| Whole::new(position)),
        };
        Ok(Box::pin(stream::try_unfold(watcher, Watcher::next)))
    }
}

impl Watcher {
    async fn next(mut self) -> Result<Option<(WatchAnswer, Self)>, Refusal> {
        loop {
            if is_closed(&*self.records.read(), &self.tenant) {
                return Err(forbidden());
            }
            if let Some(answer) = self.ready.pop_front() {
                return Ok(Some((answer, self)));
            }
            if let Some(whole) = self.whole.take() {
                let answer = self.whole_page(whole)?;
                return Ok(Some((answer, self)));
            }
            self.more.borrow_and_update();
            match self.events.after(self.told) {
                // It fell so far behind that changes are lost: the whole set anew.
                None => {
                    let as_of = self.records.read().globals().position;
                    self.told = as_of;
                    self.whole = Some(Whole::new(as_of));
                }
                Some(changes) if changes.is_empty() => {
                    if self.more.changed().await.is_err() {
                        return Ok(None);
                    }
                }
                Some(changes) => self.tell(changes)?,
            }
        }
    }

    /// A page of the whole set. Changes after its position are told behind it; a record may be told twice, never missed.
    fn whole_page(&mut self, whole: Whole) -> Result<WatchAnswer, Refusal> {
        let names = self.tenants.names_of(&self.tenant)?;
        let state = self.records.read();
        let now = state.globals().time;
        let lists = lists(Some(StateWord::Indeterminate), state.globals());
        let (mut at_list, mut after) = whole.place;
        let mut page = Vec::new();
        while let (Some(list), true) = (lists.get(at_list), page.len() < limits::WATCH_PAGE_RECORDS) {
            let left = limits::WATCH_PAGE_RECORDS - page.len();
            let found = state.since(&self.tenant, *list, after.as_ref().map(|(at, record)| (*at, record)), left);
            if found.len() < left {
                (at_list, after) = (at_list + 1, None);
            } else {
                after = found.last().map(|(at, record, _)| (*at, record.clone()));
            }
            page.extend(found);
        }
        let more = at_list < lists.len();
        let mut indeterminate = Vec::with_capacity(page.len());
        for (_, record, _) in &page {
            let (Some(head), Some(names)) = (state.head(record), &names) else { continue };
            if let Some(shown) = view::record(&*state, (names, record), &head, now, whole.as_of, false)?
                && shown.state == StateWord::Indeterminate
                && self.wants(&shown.id.operation)
            {
                indeterminate.push(shown);
            }
        }
        drop(state);
        if more {
            self.whole = Some(Whole { as_of: whole.as_of, place: (at_list, after), is_first: false });
        }
        Ok(WatchAnswer { index: whole.as_of, reset: whole.is_first, indeterminate, gone: Vec::new(), more })
    }

    /// Makes one answer of all changes of each position.
    fn tell(&mut self, changes: Vec<events::Change>) -> Result<(), Refusal> {
        let mut by_position: BTreeMap<Position, Vec<events::Change>> = BTreeMap::new();
        for change in changes {
            by_position.entry(change.at).or_default().push(change);
        }
        let names = self.tenants.names_of(&self.tenant)?;
        let state = self.records.read();
        let now = state.globals().time;
        for (index, changes) in by_position {
            self.told = index;
            let mut answer =
                WatchAnswer { index, reset: false, indeterminate: Vec::new(), gone: Vec::new(), more: false };
            for change in changes.iter().filter(|change| change.record.tenant == self.tenant) {
                let Some(names) = &names else { continue };
                if let Some((id, word)) = &change.gone {
                    let id = names.opened_id(&change.record, id)?;
                    if self.wants(&id.operation) {
                        answer.gone.push((id, *word));
                    }
                    continue;
                }
                // As the record is now: what came of it since is told at its own position.
                let Some(head) = state.head(&change.record) else { continue };
                let shown = view::record(&*state, (names, &change.record), &head, now, index, false)?;
                let is_one =
                    |shown: &Record| shown.state == StateWord::Indeterminate && self.wants(&shown.id.operation);
                answer.indeterminate.extend(shown.filter(is_one));
            }
            if !(answer.indeterminate.is_empty() && answer.gone.is_empty()) {
                self.ready.push_back(answer);
            }
        }
        Ok(())
    }

    fn wants(&self, operation: &Operation) -> bool {
        self.operation.as_ref().is_none_or(|wanted| wanted == operation) && self.caller.allows(operation)
    }
}
