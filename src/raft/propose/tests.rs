//! What the two ends of the queue promise each other.

use super::*;
use crate::{
    id::Tenant,
    records::command::{TenantOpened, Wrapped},
};

fn queue(places: usize) -> (Queue, mpsc::Receiver<Item>) {
    let (items, receiver) = mpsc::channel(places);
    (Queue { items, waiting: Arc::default() }, receiver)
}

fn command(bytes: usize) -> Arc<Command> {
    let index_key = Wrapped { wrapping_id: 0, bytes: codec::Blob(vec![7; bytes].into()) };
    Arc::new(Command::TenantOpened(TenantOpened { tenant: Tenant::parse("acme").unwrap(), index_key }))
}

async fn next(items: &mut mpsc::Receiver<Item>) -> Queued {
    match items.recv().await {
        Some(Item::Command(queued)) => queued,
        Some(Item::Tick(_)) | None => panic!("a command was queued"),
    }
}

#[tokio::test]
async fn the_queue_is_bounded_by_count_and_bytes_and_takes_all_or_none() {
    let (queue, mut items) = queue(3);
    assert_eq!(queue.push(vec![command(1), command(1)]).unwrap().len(), 2);
    assert_eq!(queue.push(vec![command(1), command(1)]).err().unwrap().code, Code::RateLimited);
    let before = queue.waiting.coming_bytes.load(Ordering::Relaxed);
    let large = limits::COMMAND_BYTES_MAX - 1000;
    assert_eq!(queue.push(vec![command(large); 5]).err().unwrap().code, Code::RateLimited);
    assert_eq!(queue.push(vec![command(limits::COMMAND_BYTES_MAX)]).err().unwrap().code, Code::RequestTooLarge);
    assert_eq!(queue.waiting.coming_bytes.load(Ordering::Relaxed), before);
    items.close();
    assert_eq!(queue.push(vec![command(1)]).err().unwrap().code, Code::Unavailable);
}

#[tokio::test]
async fn what_a_caller_is_told_of_the_effect_is_true() {
    let (queue, mut items) = queue(3);
    let short = Duration::from_millis(1);
    let ticket = queue.push(vec![command(1)]).unwrap().pop().unwrap();
    assert_eq!(ticket.answer(short).await.unwrap_err().code, Code::Unavailable);
    let mut batch = Batch::new();
    batch.add(next(&mut items).await);
    assert!(batch.is_empty(), "what was withdrawn is not proposed");

    let ticket = queue.push(vec![command(1)]).unwrap().pop().unwrap();
    batch.add(next(&mut items).await);
    assert_eq!(batch.commands.len(), 1);
    assert_eq!(ticket.answer(short).await.unwrap_err().code, Code::ResultUnknown);

    let ticket = queue.push(vec![command(1)]).unwrap().pop().unwrap();
    batch.add(next(&mut items).await);
    drop(batch);
    assert_eq!(ticket.answer(Duration::from_secs(60)).await.unwrap_err().code, Code::ResultUnknown);
}

#[test]
fn joined_commands_are_the_encoding_of_the_entry() {
    for count in [0_usize, 1, 3, 300] {
        let opened = |n: usize| {
            let index_key = Wrapped { wrapping_id: 0, bytes: codec::Blob(vec![7; n].into()) };
            let tenant = Tenant::parse(&format!("tenant-{n}")).unwrap();
            Arc::new(Command::TenantOpened(TenantOpened { tenant, index_key }))
        };
        let commands: Vec<_> = (0..count).map(opened).collect();
        let encoded: Vec<Bytes> = commands.iter().map(|c| codec::encode(&**c).slice(1..)).collect();
        let proposal = Batch::proposal(commands, &encoded, 0, Time(1_700_000_000_000));
        assert_eq!(proposal.bytes, codec::encode(&*proposal.entry), "{count} commands");
    }
}
