//! Who is next: what waits to be proposed, a line for each tenant, served in turns of as many bytes.
//!
//! # Invariants
//!
//! - Q1. Each line is first in, first out. Nothing is promised between lines.
//! - Q2. No line grows longer than what is free beside it: one alone gets half of the room, two a third each. So however
//!   many flood, there is room for whoever comes next.
//! - Q3. While another line waits, a line has at most half of what can be in flight, one turn apart.
//! - Q4. Whatever waits, a batch takes at least one command: nothing waits for ever.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use smallvec::SmallVec;

use crate::{
    id::Tenant,
    limits,
    records::{
        command::{CallerCommand, Command},
        reseal::Resealed,
    },
};

/// Whose line a command waits in: its tenant's, or the cluster's own.
pub(super) fn tenant_of(command: &Command) -> Option<&Tenant> {
    match command {
        Command::TenantOpened(opened) => Some(&opened.tenant),
        Command::SealedTenantOpened(sealed) => Some(&sealed.opened.tenant),
        Command::PolicySet(set) => Some(&set.tenant),
        Command::Claim(claim) => Some(&claim.record.tenant),
        Command::Owner(owner) => Some(&owner.record.tenant),
        Command::Investigate(investigate) => Some(&investigate.record.tenant),
        Command::Resolve(resolve) => Some(&resolve.record.tenant),
        Command::Forget(forget) => Some(&forget.record.tenant),
        Command::TokenCreated(created) => created.token.tenant.as_ref(),
        Command::TokenRevoked(revoked) => revoked.tenant.as_ref(),
        Command::ByToken(by) => match &by.command {
            CallerCommand::PolicySet(set) => Some(&set.tenant),
            CallerCommand::Claim(claim) => Some(&claim.record.tenant),
            CallerCommand::Owner(owner) => Some(&owner.record.tenant),
            CallerCommand::Investigate(investigate) => Some(&investigate.record.tenant),
            CallerCommand::Resolve(resolve) => Some(&resolve.record.tenant),
            CallerCommand::Forget(forget) => Some(&forget.record.tenant),
            CallerCommand::TokenCreated(created) => created.token.tenant.as_ref(),
            CallerCommand::TokenRevoked(revoked) => revoked.tenant.as_ref(),
        },
        Command::Resealed(resealed) => match &**resealed {
            Resealed::Record(resealed) => Some(&resealed.record.tenant),
            Resealed::Token(resealed) => resealed.of.as_ref(),
        },
        Command::Init(_)
        | Command::SealedInit(_)
        | Command::Restored(_)
        | Command::DoubtEnded(_)
        | Command::NodeRetired(_)
        | Command::FeatureRaised(_)
        | Command::WritesEnded(_)
        | Command::Noted(_)
        | Command::TokensDropped(_)
        | Command::TenantClosed(_)
        | Command::TenantKeysDestroyed(_)
        | Command::KeyRotated(_)
        | Command::RootsRewrapped(_)
        | Command::DataKeyAdded(_)
        | Command::DataKeyRemoved(_)
        | Command::SealingEnabled(_) => None,
    }
}

/// How much may wait, and how much may be in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Commands that wait, over all lines.
    pub commands: usize,
    /// Their bytes.
    pub bytes: usize,
    /// What one turn is worth, bytes.
    pub turn_bytes: usize,
    /// Commands in flight.
    pub flying_commands: usize,
    /// Bytes in flight.
    pub flying_bytes: usize,
    /// Batches in flight.
    pub flying_batches: usize,
}

impl Bounds {
    /// Those of a node.
    pub const NODE: Self = Self {
        commands: limits::PROPOSE_QUEUE_MAX,
        bytes: limits::PROPOSE_QUEUE_BYTES_MAX,
        turn_bytes: limits::PROPOSE_TURN_BYTES,
        flying_commands: limits::PROPOSALS_IN_FLIGHT_MAX * limits::ENTRY_COMMANDS_MAX,
        flying_bytes: limits::PROPOSALS_IN_FLIGHT_MAX * limits::ENTRY_BYTES_MAX,
        flying_batches: limits::FORWARDS_IN_FLIGHT_MAX,
    };
}

/// What a line has in flight.
#[derive(Debug, Default)]
struct Flying {
    commands: AtomicUsize,
    bytes: AtomicUsize,
    batches: AtomicUsize,
}

/// A line's part in a batch: in flight until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    flying: Arc<Flying>,
    line: usize,
    commands: usize,
    bytes: usize,
}

/// The parts of all lines in a batch. Most batches are one tenant's.
pub(super) type Shares = SmallVec<[Share; 2]>;

impl Drop for Share {
    fn drop(&mut self) {
        self.flying.commands.fetch_sub(self.commands, Ordering::Relaxed);
        self.flying.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.flying.batches.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Line<T> {
    tenant: Option<Tenant>,
    /// With their bytes.
    waits: VecDeque<(usize, T)>,
    bytes: usize,
    /// Bytes that it may still take in its turn.
    credit: usize,
    flying: Arc<Flying>,
}

impl<T> Line<T> {
    fn is_idle(&self) -> bool {
        self.waits.is_empty() && Arc::strong_count(&self.flying) == 1
    }
}

/// What a batch may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    /// Commands.
    pub commands: usize,
    /// Their bytes, one larger command apart.
    pub bytes: usize,
    /// Whether it holds commands of one line alone: for what is answered together.
    pub of_one: bool,
}

/// Everything that waits.
pub(super) struct Fair<T> {
    bounds: Bounds,
    lines: Vec<Line<T>>,
    /// Where a tenant's line is.
    places: HashMap<Option<Tenant>, usize>,
    /// Lines in which something waits, whose turn it is first.
    turns: VecDeque<usize>,
    /// Whether the first of them has got the credit of its turn already.
    in_turn: bool,
    /// The line that was joined last: most of the time the next one is the same.
    last: usize,
    /// Lines beyond which those that nobody needs are looked for.
    lines_kept: usize,
    commands: usize,
    bytes: usize,
}

impl<T> Fair<T> {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            lines: Vec::new(),
            places: HashMap::new(),
            turns: VecDeque::new(),
            in_turn: false,
            last: 0,
            lines_kept: limits::PROPOSE_LINES_KEPT,
            commands: 0,
            bytes: 0,
        }
    }

    /// What waits: commands and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        (self.commands, self.bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Puts a command at the end of its tenant's line; gives it back where that is long enough (Q2).
    pub fn join(&mut self, item: T, bytes: usize, tenant: impl Fn(&T) -> Option<&Tenant>) -> Result<(), T> {
        let at = self.line(tenant(&item));
        let line = &mut self.lines[at];
        let free = (self.bounds.commands.saturating_sub(self.commands), self.bounds.bytes.saturating_sub(self.bytes));
        let fits = match line.waits.is_empty() {
            // However large: a single command passes an empty room.
            true => self.commands == 0 || (free.0 > 0 && free.1 >= bytes),
            false => line.waits.len() < free.0 && line.bytes + bytes <= free.1,
        };
        if !fits {
            return Err(item);
        }
        if line.waits.is_empty() {
            self.turns.push_back(at);
        }
        line.waits.push_back((bytes, item));
        line.bytes += bytes;
        self.commands += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes a batch, in turns. `takes` is given each command and says whether it is proposed: what was withdrawn is not.
    pub fn take(&mut self, batch: Batch, mut takes: impl FnMut(T) -> bool) -> Shares {
        let mut shares = Shares::new();
        let (mut commands, mut bytes, mut passed) = (0, 0, 0);
        while let Some(&at) = self.turns.front() {
            if batch.of_one && shares.first().is_some_and(|share| share.line != at) {
                break;
            }
            // All have their half already: whoever is first goes on, or nothing would.
            let must = passed >= self.turns.len() && shares.is_empty();
            if passed >= self.turns.len() && !must {
                break;
            }
            let another = self.turns.len() > 1 || shares.iter().any(|share| share.line != at);
            if another && !must && self.has_half(at, &shares) {
                self.pass_turn();
                passed += 1;
                continue;
            }
            passed = 0;
            if self.serve(at, batch, another, (&mut commands, &mut bytes), &mut shares, &mut takes) {
                break;
            }
        }
        shares
    }

    /// Serves the line whose turn it is. True where the batch is full: its turn goes on with the next one.
    fn serve(
        &mut self,
        at: usize,
        batch: Batch,
        another: bool,
        (commands, bytes): (&mut usize, &mut usize),
        shares: &mut Shares,
        takes: &mut impl FnMut(T) -> bool,
    ) -> bool {
        let line = &mut self.lines[at];
        if !self.in_turn {
            self.in_turn = true;
            line.credit += self.bounds.turn_bytes;
        }
        let (mut own, mut own_bytes) = (0, 0);
        let mut is_full = false;
        while let Some(&(size, _)) = line.waits.front() {
            let fits = *commands == 0 || (*commands < batch.commands && *bytes + size <= batch.bytes);
            if !fits {
                is_full = true;
                break;
            }
            // Alone it owes nobody anything.
            if another && size > line.credit {
                break;
            }
            let (_, item) = line.waits.pop_front().expect("it was looked at just now");
            line.bytes -= size;
            self.commands -= 1;
            self.bytes -= size;
            if takes(item) {
                line.credit = line.credit.saturating_sub(size);
                *commands += 1;
                *bytes += size;
                own += 1;
                own_bytes += size;
            }
        }
        let is_over = line.waits.is_empty();
        if own > 0 {
            add(shares, at, &line.flying, own, own_bytes);
        }
        if is_over {
            line.credit = 0;
            if line.waits.capacity() > limits::PROPOSE_LINE_KEPT {
                line.waits.shrink_to(limits::PROPOSE_LINE_KEPT);
            }
            self.turns.pop_front();
            self.in_turn = false;
        } else if !is_full {
            self.pass_turn();
        }
        is_full
    }

    fn pass_turn(&mut self) {
        if let Some(first) = self.turns.pop_front() {
            self.turns.push_back(first);
        }
        self.in_turn = false;
    }

    /// Whether a line has half of what may be in flight.
    fn has_half(&self, at: usize, shares: &Shares) -> bool {
        let flying = &self.lines[at].flying;
        let is_in = shares.iter().any(|share| share.line == at);
        let batches = flying.batches.load(Ordering::Relaxed) - usize::from(is_in);
        flying.commands.load(Ordering::Relaxed) >= self.bounds.flying_commands / 2
            || flying.bytes.load(Ordering::Relaxed) >= self.bounds.flying_bytes / 2
            || batches >= self.bounds.flying_batches / 2
    }

    /// Where this tenant's line is; a new one where it has none.
    fn line(&mut self, tenant: Option<&Tenant>) -> usize {
        if self.lines.get(self.last).is_some_and(|line| line.tenant.as_ref() == tenant) {
            return self.last;
        }
        let tenant = tenant.cloned();
        if let Some(&at) = self.places.get(&tenant) {
            self.last = at;
            return at;
        }
        if self.lines.len() >= self.lines_kept {
            self.forget_idle();
        }
        let at = self.lines.len();
        let (waits, flying) = (VecDeque::new(), Arc::default());
        self.lines.push(Line { tenant: tenant.clone(), waits, bytes: 0, credit: 0, flying });
        self.places.insert(tenant, at);
        self.last = at;
        at
    }

    /// Drops the lines of those who have nothing here.
    fn forget_idle(&mut self) {
        // Their turns by name: the places change.
        let turns: Vec<_> = self.turns.iter().map(|at| self.lines[*at].tenant.clone()).collect();
        self.lines.retain(|line| !line.is_idle());
        self.places = self.lines.iter().enumerate().map(|(at, line)| (line.tenant.clone(), at)).collect();
        self.turns = turns.iter().map(|tenant| self.places[tenant]).collect();
        self.last = 0;
        self.lines_kept = limits::PROPOSE_LINES_KEPT.max(2 * self.lines.len());
    }
}

/// Adds to a line's part of a batch.
fn add(shares: &mut Shares, line: usize, flying: &Arc<Flying>, commands: usize, bytes: usize) {
    flying.commands.fetch_add(commands, Ordering::Relaxed);
    flying.bytes.fetch_add(bytes, Ordering::Relaxed);
    match shares.iter_mut().find(|share| share.line == line) {
        Some(share) => {
            share.commands += commands;
            share.bytes += bytes;
        }
        None => {
            flying.batches.fetch_add(1, Ordering::Relaxed);
            shares.push(Share { flying: Arc::clone(flying), line, commands, bytes });
        }
    }
}

#[cfg(test)]
mod tests;
