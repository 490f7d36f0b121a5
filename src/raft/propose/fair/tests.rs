//! Who is served when, by counts alone: nothing here takes time.

use super::*;

const BOUNDS: Bounds = Bounds {
    commands: 1000,
    bytes: 100_000,
    turn_bytes: 100,
    flying_commands: 80,
    flying_bytes: 8000,
    flying_batches: 100,
};
const BATCH: Batch = Batch { commands: 20, bytes: 2000, of_one: false };

/// A command of a tenant: its number in the tenant's line.
type Item = (Tenant, usize);

fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).expect("a tenant")
}

struct Lines {
    fair: Fair<Item>,
    joined: HashMap<Tenant, usize>,
}

impl Lines {
    fn new() -> Self {
        Self { fair: Fair::new(BOUNDS), joined: HashMap::new() }
    }

    /// Joins so many of these sizes; answers how many were let in.
    fn join(&mut self, name: &str, count: usize, bytes: usize) -> usize {
        let mut let_in = 0;
        for _ in 0..count {
            let next = self.joined.entry(tenant(name)).or_default();
            let joined = self.fair.join((tenant(name), *next), bytes, |item| Some(&item.0));
            if joined.is_ok() {
                *next += 1;
                let_in += 1;
            }
        }
        let_in
    }

    fn take(&mut self, batch: Batch) -> (Vec<Item>, Shares) {
        let mut taken = Vec::new();
        let shares = self.fair.take(batch, |item| {
            taken.push(item);
            true
        });
        (taken, shares)
    }
}

fn of(name: &str, taken: &[Item]) -> Vec<usize> {
    taken.iter().filter(|item| item.0 == tenant(name)).map(|item| item.1).collect()
}

#[test]
fn one_tenant_alone_is_a_plain_queue() {
    let mut lines = Lines::new();
    assert_eq!(lines.join("a", 50, 10), 50);
    let mut seen = Vec::new();
    for whole in [20, 20, 10, 0] {
        let (taken, _) = lines.take(BATCH);
        assert_eq!(taken.len(), whole, "batches are as full as they can be");
        seen.extend(of("a", &taken));
    }
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
    assert_eq!(lines.fair.waiting(), (0, 0));
}

#[test]
fn whoever_comes_behind_a_flood_is_in_the_next_batch() {
    let mut lines = Lines::new();
    lines.join("flood", 400, 50);
    let flying: Vec<_> = (0..2).map(|_| lines.take(BATCH)).collect();
    lines.join("quiet", 1, 50);
    let (taken, _shares) = lines.take(BATCH);
    assert_eq!(of("quiet", &taken), [0]);
    drop(flying);
}

#[test]
fn turns_are_shared_out_by_bytes_and_not_by_commands() {
    let mut lines = Lines::new();
    lines.join("small", 400, 10);
    lines.join("large", 200, 90);
    let (mut small, mut large) = (0, 0);
    for _ in 0..10 {
        let (taken, _) = lines.take(Batch { commands: 1000, bytes: 600, of_one: false });
        small += of("small", &taken).len() * 10;
        large += of("large", &taken).len() * 90;
    }
    assert!(small.abs_diff(large) <= 2 * BOUNDS.turn_bytes, "{small} and {large} bytes");
}

#[test]
fn order_within_a_tenant_is_kept_whatever_the_others_do() {
    let mut lines = Lines::new();
    let (mut seen, mut counts) = (HashMap::<Tenant, Vec<usize>>::new(), [0; 3]);
    for round in 0..60 {
        for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
            counts[at] += lines.join(name, (round * (at + 3)) % 7, 5 + 31 * at);
        }
        for (tenant, number) in lines.take(BATCH).0 {
            seen.entry(tenant).or_default().push(number);
        }
    }
    while !lines.fair.is_empty() {
        for (tenant, number) in lines.take(BATCH).0 {
            seen.entry(tenant).or_default().push(number);
        }
    }
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(seen[&tenant(name)], (0..counts[at]).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_line_has_at_most_half_in_flight_while_another_waits() {
    let mut lines = Lines::new();
    lines.join("flood", 400, 10);
    // Alone it may have all of it.
    let mut flying: Vec<Shares> = (0..2).map(|_| lines.take(BATCH).1).collect();
    assert_eq!(lines.fair.lines[0].flying.commands.load(Ordering::Relaxed), BOUNDS.flying_commands / 2);
    // It has half of the commands: whoever else waits is served alone.
    lines.join("quiet", 3, 10);
    let (taken, shares) = lines.take(BATCH);
    assert_eq!((of("quiet", &taken), of("flood", &taken)), (vec![0, 1, 2], vec![]));
    flying.push(shares);
    // Nobody else waits: it goes on.
    let (taken, shares) = lines.take(BATCH);
    assert_eq!(of("flood", &taken).len(), 20);
    drop(shares);
    // What has landed counts no more.
    flying.clear();
    lines.join("quiet", 1, 10);
    let (taken, _shares) = lines.take(BATCH);
    assert!(of("quiet", &taken).len() == 1 && of("flood", &taken).len() == 19, "{taken:?}");
}

#[test]
fn half_counts_in_bytes_too() {
    let mut lines = Lines::new();
    lines.join("flood", 40, 1000);
    let _flying: Vec<_> = (0..2).map(|_| lines.take(BATCH)).collect();
    lines.join("quiet", 1, 1000);
    assert_eq!(lines.take(BATCH).0, [(tenant("quiet"), 0)]);
}

#[test]
fn all_over_their_half_wait_for_nobody() {
    let mut lines = Lines::new();
    let joined = lines.join("a", 8, 5000) + lines.join("b", 6, 5000);
    assert_eq!(joined, 14);
    // Each command is more than half of what may be in flight, and far more than a turn.
    let mut flying = Vec::new();
    for _ in 0..joined {
        let (taken, shares) = lines.take(BATCH);
        assert_eq!(taken.len(), 1);
        flying.push(shares);
    }
    assert!(lines.fair.is_empty());
}

#[test]
fn no_line_takes_the_room_of_those_to_come() {
    let mut lines = Lines::new();
    assert_eq!(lines.join("a", 2000, 1), BOUNDS.commands / 2);
    assert!(lines.join("b", 2000, 1).abs_diff(BOUNDS.commands / 4) <= 1);
    for name in ["c", "d", "e", "f"] {
        assert!(lines.join(name, 5, 1) >= 2, "{name}");
    }
    // By bytes as by commands.
    let mut lines = Lines::new();
    assert_eq!(lines.join("a", 200, 1000), 50);
    assert_eq!(lines.join("b", 200, 1000), 25);
    // A single one passes an empty room, however large.
    let mut lines = Lines::new();
    assert_eq!(lines.join("a", 2, 1_000_000), 1);
    assert_eq!(lines.join("b", 1, 1), 0, "and then it is full");
}

#[test]
fn what_is_sent_elsewhere_is_of_one_tenant_and_leaves_batches_to_others() {
    let mut lines = Lines::new();
    lines.fair.bounds.flying_batches = 6;
    lines.join("flood", 400, 10);
    lines.join("quiet", 1, 10);
    let alone = Batch { of_one: true, ..BATCH };
    let mut flying = Vec::new();
    let mut whose = Vec::new();
    for _ in 0..3 {
        let (taken, shares) = lines.take(alone);
        let names: std::collections::BTreeSet<_> = taken.iter().map(|item| item.0.clone()).collect();
        assert_eq!(names.len(), 1, "{taken:?}");
        whose.extend(names);
        flying.push(shares);
    }
    assert_eq!(whose, [tenant("flood"), tenant("quiet"), tenant("flood")]);
    flying.push(lines.take(alone).1);
    lines.join("quiet", 1, 10);
    let (taken, _shares) = lines.take(alone);
    assert_eq!(of("quiet", &taken), [1], "the other has half of the batches");
}

#[test]
fn what_was_withdrawn_costs_its_tenant_nothing() {
    let mut lines = Lines::new();
    lines.join("a", 10, 50);
    let shares = lines.fair.take(BATCH, |_| false);
    assert!(shares.is_empty() && lines.fair.is_empty());
}

#[test]
fn lines_that_nobody_needs_are_dropped_and_turns_kept() {
    let mut lines = Lines::new();
    lines.fair.lines_kept = 4;
    for number in 0..4 {
        lines.join(&format!("gone-{number}"), 1, 10);
    }
    lines.take(BATCH);
    for number in 0..limits::PROPOSE_LINES_KEPT + 10 {
        lines.join(&format!("here-{number}"), 1, 1);
    }
    assert!(lines.fair.lines.iter().all(|line| line.tenant.as_ref().is_some_and(|own| own.as_str() != "gone-0")));
    let mut seen = Vec::new();
    while !lines.fair.is_empty() {
        seen.extend(lines.take(BATCH).0.into_iter().map(|item| item.0.as_str().to_owned()));
    }
    let first: Vec<_> = seen.iter().take(3).map(String::as_str).collect();
    assert_eq!(first, ["here-0", "here-1", "here-2"], "who came first is served first");
}
