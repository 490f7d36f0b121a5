//! A million records: the memory that they leave the node with, and its restart.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use semel::Client;

use super::{
    Asked,
    callers::{Run, call, drive, heading, print, read_back, unique},
    node::{Dev, resident_mib, tell},
};

/// Callers that complete them.
const CONCURRENT: usize = 256;

/// Completes so many records, and tells the memory that they leave the node with.
pub async fn fill(asked: &Asked, dir: &Path, records: u64) {
    let dev = Dev::start(dir, asked);
    let clients = dev.clients(asked.sessions).await;
    println!("resident with no record: {} MiB", resident_mib(&dev.pid()).0);
    heading();
    let run = Run::of(records);
    let (seen, figures) = drive(&dev, &clients, CONCURRENT, Arc::new(run), None).await;
    print(CONCURRENT, &seen, &figures, &dev.pid());
    unique(&seen);
    let sampled: Vec<(String, Bytes)> = seen.into_iter().flat_map(|one| one.sampled).collect();
    tell(&dev, "after the last completion");
    tokio::time::sleep(Duration::from_secs(10)).await;
    tell(&dev, "10 s later");
    read_back(&clients[0], &sampled).await;
    tell(&dev, "after reading a sample back");
    dev.stop();
    let began = Instant::now();
    let dev = Dev::start(dir, asked);
    let clients = dev.clients(1).await;
    read_back(&clients[0], &sampled[..sampled.len().min(1)]).await;
    println!("a restart took {:.1?} to its first answer", began.elapsed());
    read_back(&clients[0], &sampled).await;
    tell(&dev, "after the restart and the sample");
    dev.stop();
}

/// Completes so many records in a service that runs already.
pub async fn elsewhere(endpoints: &str, records: u64) {
    let client = Client::builder().endpoints(endpoints.split(',')).connect().await.expect("the service takes calls");
    let (run, began) = (Arc::new(Run::of(records)), Instant::now());
    let callers: Vec<_> = (0..CONCURRENT).map(|_| tokio::spawn(call(client.clone(), run.clone()))).collect();
    let mut seen = Vec::new();
    for caller in callers {
        seen.push(caller.await.expect("a caller that found what it expected"));
    }
    unique(&seen);
    for one in &seen {
        read_back(&client, &one.sampled).await;
    }
    println!("{records} records in {:.1?}", began.elapsed());
}
