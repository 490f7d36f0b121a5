//! Any sequence of operations leaves an engine and an ordered map with the same rows.

use std::{collections::BTreeMap, path::Path};

use bytes::Bytes;
use proptest::{prelude::*, test_runner::FileFailurePersistence};

use super::{
    super::{
        directory::EngineKind,
        engine::{Batch, EngineSnapshot, KeyRange, Row},
    },
    collected, everything, on_every_engine, open,
};

type Model = BTreeMap<Bytes, Bytes>;

#[derive(Clone, Debug)]
enum Step {
    Write(BTreeMap<Vec<u8>, Option<Vec<u8>>>),
    Get(Vec<u8>),
    Scan(Vec<u8>, Option<Vec<u8>>),
    TakeView,
    ReadView,
    Reopen,
}

/// Short keys over a small alphabet, so that they meet, share prefixes and contain each other.
fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0u8, 1, 7, 254, 255]), 1..4)
}

fn any_step() -> impl Strategy<Value = Step> {
    let change = prop::option::weighted(0.7, prop::collection::vec(any::<u8>(), 0..40));
    prop_oneof![
        8 => prop::collection::btree_map(any_key(), change, 0..20).prop_map(Step::Write),
        4 => any_key().prop_map(Step::Get),
        4 => (any_key(), prop::option::of(any_key())).prop_map(|(start, end)| Step::Scan(start, end)),
        2 => Just(Step::TakeView),
        2 => Just(Step::ReadView),
        1 => Just(Step::Reopen),
    ]
}

on_every_engine!(any_history_leaves_the_rows_of_an_ordered_map);

fn any_history_leaves_the_rows_of_an_ordered_map(kind: EngineKind) {
    let cases = if kind == EngineKind::Memory { 256 } else { 24 };
    let persistence = FileFailurePersistence::WithSource("regressions");
    let config =
        ProptestConfig { cases, failure_persistence: Some(Box::new(persistence)), ..ProptestConfig::default() };
    proptest!(config, |(steps in prop::collection::vec(any_step(), 1..60))| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        run(kind, dir.path(), steps)?;
    });
}

fn run(kind: EngineKind, path: &Path, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut engine = open(kind, path);
    let mut model = Model::new();
    let mut view: Option<(Box<dyn EngineSnapshot>, Model)> = None;
    for step in steps {
        match step {
            Step::Write(changes) => {
                let mut batch = Batch::new();
                for (key, value) in changes {
                    let key = Bytes::from(key);
                    match value.map(Bytes::from) {
                        Some(value) => {
                            batch.put(key.clone(), value.clone());
                            model.insert(key, value);
                        }
                        None => {
                            batch.delete(key.clone());
                            model.remove(&key);
                        }
                    }
                }
                engine.write(batch).expect("written");
            }
            Step::Get(key) => prop_assert_eq!(engine.get(&key).expect("read"), model.get(&key[..]).cloned()),
            Step::Scan(start, end) => {
                let range = match end {
                    Some(end) => KeyRange::new(start, end),
                    None => KeyRange::starting_at(start),
                };
                let expected: Vec<Row> = rows(&model).into_iter().filter(|(key, _)| range.contains(key)).collect();
                prop_assert_eq!(collected(engine.scan(&range).expect("the scan begins")), expected);
            }
            Step::TakeView => view = Some((engine.snapshot().expect("a view"), model.clone())),
            Step::ReadView => {
                if let Some((view, then)) = view.take() {
                    for key in then.keys().chain(model.keys()) {
                        prop_assert_eq!(view.get(key).expect("read"), then.get(key).cloned());
                    }
                    prop_assert_eq!(collected(view.into_scan().expect("the scan begins")), rows(&then));
                }
            }
            Step::Reopen if kind == EngineKind::Memory => {}
            Step::Reopen => {
                view = None;
                drop(engine);
                engine = open(kind, path);
            }
        }
    }
    prop_assert_eq!(everything(&*engine), rows(&model));
    Ok(())
}

fn rows(model: &Model) -> Vec<Row> {
    model.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}
