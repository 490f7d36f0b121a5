//! Lists: a page examines a bounded number of records and may be short; only the absence of a cursor ends a list.

use std::sync::Arc;

use super::{
    Log,
    answer::{ListAnswer, Record},
    cursor::{Cursor, Place, invalid},
    names::Names,
    node::Service,
    request::ListRequest,
    view,
};
use crate::{
    auth::{Caller, Method},
    id::{KeyedHash, RecordId, Tenant, Time, join, join_absent},
    limits,
    records::{
        command::RecordRef,
        record::{Head, StateWord},
        state::{Globals, SinceList, State},
    },
    refusal::Refusal,
    store::overlay::Overlay,
};

/// What a list asks for, ready to be judged record by record.
struct Question<'a> {
    caller: &'a Caller,
    request: &'a ListRequest,
    operation: Option<KeyedHash>,
    before: Option<Time>,
}

/// The records that one page examines, in order, each with the place behind it.
type Examined = Vec<(RecordRef, Option<Arc<Head>>, Place)>;

impl<L: Log> Service<L> {
    pub(super) async fn do_list(&self, caller: &Caller, request: ListRequest) -> Result<ListAnswer, Refusal> {
        caller.permit(Method::List)?;
        let tenant = caller.tenant(request.tenant.as_ref())?;
        if let Some(operation) = request.operation.as_ref().filter(|operation| !caller.allows(operation)) {
            caller.authorize(Method::List, request.tenant.as_ref(), operation)?;
        }
        self.log.barrier().await?;
        self.judge(caller, Some(&tenant))?;
        let Some(names) = self.names_of(&tenant)? else {
            if request.cursor.is_some() {
                return Err(invalid());
            }
            return Ok(ListAnswer { records: Vec::new(), cursor: None, index: self.position() });
        };
        self.sweep_what_is_due().await?;
        self.page(caller, &request, &tenant, &names)
    }

    /// Has everything written down that was due when this was asked: the since index then holds states as read.
    async fn sweep_what_is_due(&self) -> Result<(), Refusal> {
        let asked = self.log.now();
        while self.records.next_due().is_some_and(|due| due <= asked) {
            // Each tick writes down a bounded number, oldest first; a time just above the applied one makes a new entry.
            let next = asked.max(self.applied_time().plus_ms(1));
            self.log.tick_to(next).await?;
        }
        // States that change by themselves without a deadline entry (replay windows) are read at applied time.
        if self.applied_time() < asked { self.log.tick_to(asked).await } else { Ok(()) }
    }

    fn page(
        &self,
        caller: &Caller,
        request: &ListRequest,
        tenant: &Tenant,
        names: &Names,
    ) -> Result<ListAnswer, Refusal> {
        let filter = question_bytes(request);
        let after = request.cursor.as_ref().map(|text| Cursor::parse(text, names, &filter)).transpose()?;
        let state = self.records.read();
        let (index, now) = (state.globals().position, state.globals().time);
        let question = Question {
            caller,
            request,
            operation: request.operation.as_ref().map(|operation| names.operation(operation)),
            before: request.older_than_ms.map(|ms| Time(now.0.saturating_sub(u64::from(ms)))),
        };
        let (examined, is_end) = examine(&state, tenant, &question, after.map(|cursor| cursor.place))?;
        let mut records = Vec::new();
        let mut last = None;
        for (record, head, place) in examined {
            if records.len() >= request.page_size as usize {
                let cursor = last.map(|place| Cursor { place, filter: &filter }.encode(names));
                return Ok(ListAnswer { records, cursor, index });
            }
            last = Some(place);
            let Some(head) = head.or_else(|| state.head(&record)) else { continue };
            if let Some(shown) = view::record(&*state, (names, &record), &head, now, index, false)?
                && question.fits(&shown)
            {
                records.push(shown);
            }
        }
        let cursor = last.filter(|_| !is_end).map(|place| Cursor { place, filter: &filter }.encode(names));
        Ok(ListAnswer { records, cursor, index })
    }
}

impl Question<'_> {
    fn fits(&self, record: &Record) -> bool {
        let RecordId { principal, operation, .. } = &record.id;
        self.request.state.is_none_or(|state| state == record.state)
            && self.request.principal.as_ref().is_none_or(|wanted| wanted == principal)
            && self.request.operation.as_ref().is_none_or(|wanted| wanted == operation)
            && self.before.is_none_or(|before| record.since < before)
            && self.caller.allows(operation)
    }
}

/// The next records to examine behind a place, and whether they are the last.
fn examine(
    state: &Overlay,
    tenant: &Tenant,
    question: &Question<'_>,
    after: Option<Place>,
) -> Result<(Examined, bool), Refusal> {
    let max = limits::PAGE_EXAMINED_MAX;
    let lists = lists(question.request.state, state.globals());
    if lists.is_empty() {
        let after = match after {
            Some(Place::Head { operation, record }) => Some(RecordRef { tenant: tenant.clone(), operation, record }),
            Some(_) => return Err(invalid()),
            None => None,
        };
        let heads = state.heads(tenant, question.operation, after.as_ref(), max);
        let is_end = heads.len() < max;
        let place = |record: &RecordRef| Place::Head { operation: record.operation, record: record.record };
        let examined = heads.into_iter().map(|(record, head)| {
            let place = place(&record);
            (record, Some(head), place)
        });
        return Ok((examined.collect(), is_end));
    }
    let (first, mut from) = match after {
        Some(Place::Since { list, at, operation, record }) => {
            let first = lists.iter().position(|known| known.tag() == list).ok_or_else(invalid)?;
            (first, Some((at, RecordRef { tenant: tenant.clone(), operation, record })))
        }
        Some(_) => return Err(invalid()),
        None => (0, None),
    };
    let mut examined = Vec::new();
    for list in &lists[first..] {
        let left = max - examined.len();
        let place = from.take();
        let found = state.since(tenant, *list, place.as_ref().map(|(at, record)| (*at, record)), left);
        let is_short = found.len() < left;
        examined.extend(found.into_iter().map(|(at, record, _)| {
            let place = Place::Since { list: list.tag(), at, operation: record.operation, record: record.record };
            (record, None, place)
        }));
        if !is_short {
            return Ok((examined, false));
        }
    }
    Ok((examined, true))
}

/// The lists of the since index that hold every record of a state; none where only the heads do.
pub(super) fn lists(state: Option<StateWord>, globals: &Globals) -> Vec<SinceList> {
    match state {
        // In a restore's doubt, records in progress may read as indeterminate.
        Some(StateWord::Indeterminate) if globals.doubt.is_some() => {
            vec![SinceList::Indeterminate, SinceList::InProgress]
        }
        Some(StateWord::Indeterminate) => vec![SinceList::Indeterminate],
        Some(StateWord::InProgress) => vec![SinceList::InProgress],
        _ => Vec::new(),
    }
}

/// What a cursor is bound to: everything that is asked for but the page's size.
fn question_bytes(request: &ListRequest) -> Vec<u8> {
    let mut bytes = Vec::new();
    let texts = [
        request.state.map(|state| state.as_str()),
        request.operation.as_ref().map(|operation| operation.as_str()),
        request.principal.as_ref().map(|principal| principal.as_str()),
    ];
    for text in texts {
        match text {
            Some(text) => join(&mut bytes, text.as_bytes()),
            None => join_absent(&mut bytes),
        }
    }
    bytes
}
