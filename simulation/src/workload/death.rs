//! Death at an await: a future that is dropped after so many polls, wherever it then stands.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// A future that may not live to its end: none then.
pub struct Mortal<F> {
    inner: Option<Pin<Box<F>>>,
    polls_left: usize,
}

impl<F: Future> Mortal<F> {
    /// Dropped when it is polled for more than this many times.
    pub fn new(inner: F, polls: usize) -> Self {
        Self { inner: Some(Box::pin(inner)), polls_left: polls }
    }
}

impl<F: Future> Future for Mortal<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        match inner.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls_left <= 1 => {
                self.inner = None;
                Poll::Ready(None)
            }
            Poll::Pending => {
                self.polls_left -= 1;
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn it_dies_at_the_await_at_which_it_stands() {
        let passed = Cell::new(0);
        let life = async {
            for _ in 0..5 {
                tokio::task::yield_now().await;
                passed.set(passed.get() + 1);
            }
        };
        assert_eq!(Mortal::new(life, 3).await, None);
        assert_eq!(passed.get(), 2);
        assert_eq!(Mortal::new(async { 7 }, 1).await, Some(7), "what needs no wait is done before");
    }
}
