//! Batches: several commands in order, each as it would be alone and seeing those before it; not atomic.

use std::sync::Arc;

use super::{
    Log,
    answer::{BatchAnswer, ItemAnswer},
    claim::Decided,
    node::{Service, Target, at, mismatch},
    owner::{no_record, owner_answer, owner_command},
    request::{BatchRequest, Command, OwnerKind},
};
use crate::{
    auth::{Caller, Method, caller::unauthenticated},
    id::Position,
    records::{
        self,
        answer::{Answer, Applied},
        command::Claim,
    },
    refusal::{Code, Refusal},
};

/// What is known of an item before the log answers.
enum Item {
    /// Proposed; what its answer is made with.
    Claim(Target, Arc<Claim>),
    /// Proposed.
    Owner(OwnerKind),
}

impl<L: Log> Service<L> {
    pub(super) async fn do_batch(&self, caller: &Caller, request: BatchRequest) -> Result<BatchAnswer, Refusal> {
        caller.permit(Method::Batch)?;
        let mut answers: Vec<Option<Result<ItemAnswer, Refusal>>> = Vec::with_capacity(request.items.len());
        let mut waiting: Vec<(usize, Item, Arc<records::command::Command>)> = Vec::new();
        for item in request.items {
            let place = answers.len();
            answers.push(None);
            let prepared = match item {
                Err(refusal) => Err(refusal),
                Ok(Command::Get(get)) => {
                    // It sees those before it: they are proposed and answered first.
                    self.propose_items(caller, &mut waiting, &mut answers).await;
                    answers[place] =
                        Some(self.do_get(caller, get).await.map(|record| ItemAnswer::Get(Box::new(record))));
                    continue;
                }
                Ok(Command::Claim(claim)) => self.prepare_claim(caller, &claim).await.map(|(target, claim, _)| {
                    let command = records::command::Command::Claim(Box::new((*claim).clone()));
                    (Item::Claim(target, claim), command)
                }),
                Ok(Command::Owner(owner)) => self.prepare_item(caller, *owner).await,
            };
            match prepared {
                Ok((item, command)) => waiting.push((place, item, Arc::new(command))),
                Err(refusal) => answers[place] = Some(Err(refusal)),
            }
        }
        self.propose_items(caller, &mut waiting, &mut answers).await;
        let items: Vec<_> = answers.into_iter().flatten().collect();
        let index = items.iter().filter_map(index_of).max().unwrap_or_else(|| self.position());
        Ok(BatchAnswer { items, index })
    }

    /// An owner's command of a batch: proposed even where nothing is recorded yet, since an item before it may claim.
    async fn prepare_item(
        &self,
        caller: &Caller,
        request: super::request::OwnerRequest,
    ) -> Result<(Item, records::command::Command), Refusal> {
        let kind = request.action.kind();
        let id = self.authorize(caller, super::owner::method(kind), request.record)?;
        let Some(target) = self.known_target(id).await? else { return Err(at(self.position(), no_record())) };
        Ok((Item::Owner(kind), owner_command(caller, &target, request.fence, request.action)))
    }

    async fn propose_items(
        &self,
        caller: &Caller,
        waiting: &mut Vec<(usize, Item, Arc<records::command::Command>)>,
        answers: &mut [Option<Result<ItemAnswer, Refusal>>],
    ) {
        if waiting.is_empty() {
            return;
        }
        let mut items = Vec::with_capacity(waiting.len());
        let mut commands = Vec::with_capacity(waiting.len());
        for (place, item, command) in waiting.drain(..) {
            items.push((place, item));
            commands.push(match caller.token_id() {
                Some(id) => Arc::new((*command).clone().by_token(id)),
                None => command,
            });
        }
        let applied = self.log.propose(commands).await;
        for ((place, item), applied) in items.into_iter().zip(applied) {
            answers[place] = Some(self.item_answer(item, applied));
        }
    }

    fn item_answer(&self, item: Item, applied: Result<Applied, Refusal>) -> Result<ItemAnswer, Refusal> {
        if let Ok(Applied { answer: Err(refusal), .. }) = &applied
            && refusal.code == Code::Unauthenticated
        {
            return Err(unauthenticated());
        }
        match item {
            Item::Claim(target, claim) => {
                let named = |refusal: Refusal| Refusal { attempt_id: Some(claim.attempt_id), ..refusal };
                let applied = applied.map_err(named)?;
                match applied.answer.map_err(named)? {
                    Answer::Claim(answer) => {
                        let decided = Decided { index: applied.index, now: applied.now, answer };
                        self.claim_answer(&target, &claim, decided).map(ItemAnswer::Claim).map_err(named)
                    }
                    other => Err(mismatch(&other)),
                }
            }
            Item::Owner(kind) => {
                let applied = applied?;
                match applied.answer? {
                    Answer::Changed(changed) => Ok(ItemAnswer::Owner(kind, owner_answer(applied.index, changed))),
                    other => Err(mismatch(&other)),
                }
            }
        }
    }
}

fn index_of(item: &Result<ItemAnswer, Refusal>) -> Option<Position> {
    match item {
        Ok(ItemAnswer::Claim(answer)) => Some(answer.index),
        Ok(ItemAnswer::Owner(_, answer)) => Some(answer.index),
        Ok(ItemAnswer::Get(record)) => Some(record.index),
        Err(refusal) => refusal.index,
    }
}
