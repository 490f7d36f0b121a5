//! A batch and its tries. Its items are answered each by itself, and what the last try says of one is not all that is known:
//! an earlier try may have been applied without its answer having come.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tonic::{Response, Status};

use super::{Client, draw, error::Error, leader::Node, retry::Kind};
use crate::{
    proto::v1::{self, item::Command, item_answer::Answer},
    refusal::Effect,
};

impl Client {
    /// Several commands in order, each answered as it would be alone. Not atomic.
    ///
    /// # Errors
    /// If the batch as a whole was refused, or its result is not known.
    pub async fn batch(&self, mut request: v1::BatchRequest) -> Result<v1::BatchAnswer, Error> {
        for item in &mut request.items {
            if let Some(command) = &mut item.command {
                self.link.options.name(super::link::record_of(command));
            }
            if let Some(Command::Claim(claim)) = &mut item.command {
                claim.attempt_id.get_or_insert_with(|| draw::uuid().hyphenated());
            }
        }
        let tries: Arc<Tries> = Arc::default();
        let batch = |node: Arc<Node>, request| {
            let tries = Arc::clone(&tries);
            async move {
                let mut calls = node.calls();
                tries.once(node.endpoint(), calls.batch(request)).await
            }
        };
        self.link.call(Kind::Ordinary, request, batch).await
    }
}

/// The tries of one batch.
#[derive(Default)]
struct Tries {
    /// Whether one of them may have been applied, and its answer has not come.
    is_open: AtomicBool,
}

impl Tries {
    async fn once(
        &self,
        endpoint: &str,
        answer: impl Future<Output = Result<Response<v1::BatchAnswer>, Status>>,
    ) -> Result<Response<v1::BatchAnswer>, Status> {
        // One that is broken off here stays open.
        let was_open = self.is_open.swap(true, Ordering::Relaxed);
        let mut answer = answer.await.inspect_err(|status| {
            if Error::of_status(status, endpoint).effect() == Effect::None {
                self.is_open.store(was_open, Ordering::Relaxed);
            }
        })?;
        if was_open {
            // A refusal speaks for the last try alone.
            for item in &mut answer.get_mut().items {
                if let Some(Answer::Refused(refused)) = &mut item.answer {
                    refused.effect = v1::Effect::Unknown.into();
                }
            }
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;
    use crate::{
        refusal::{Code, Refusal},
        rpc::status::status,
    };

    fn refused() -> Response<v1::BatchAnswer> {
        let none = v1::Effect::None.into();
        let answer = Answer::Refused(v1::Refused { code: "unavailable".into(), effect: none, ..Default::default() });
        Response::new(v1::BatchAnswer { items: vec![v1::ItemAnswer { answer: Some(answer) }], ..Default::default() })
    }

    /// What the caller is told of an item that the last of these tries refused.
    async fn told(tries: &Tries) -> v1::Effect {
        let answer = tries.once("http://here", ready(Ok(refused()))).await.unwrap().into_inner();
        match &answer.items[0].answer {
            Some(Answer::Refused(refused)) => refused.effect(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn an_item_that_an_earlier_try_may_have_done_is_not_told_to_have_no_effect() {
        let tries = Tries::default();
        assert_eq!(told(&tries).await, v1::Effect::None);
        // The whole batch refused before anything was done.
        let tries = Tries::default();
        let refusal = Refusal::new(Code::Unavailable, "no node leads at the moment");
        assert!(tries.once("http://here", ready(Err(status(refusal)))).await.is_err());
        assert_eq!(told(&tries).await, v1::Effect::None);
        // A connection that ended, and an answer that did not come in time.
        let tries = Tries::default();
        assert!(tries.once("http://here", ready(Err(Status::unavailable("reset")))).await.is_err());
        assert_eq!(told(&tries).await, v1::Effect::Unknown);
        let tries = Tries::default();
        assert!(tries.once("http://here", pending()).now_or_never().is_none());
        assert_eq!(told(&tries).await, v1::Effect::Unknown);
    }
}
