//! The command line: one binary that is the node and its tools.
//!
//! Record commands speak HTTP/JSON to a node, as any other client does (`call`); what they send is built in
//! `records`, `reconcile` and `policy`, what people see in `show`. With `--json` the service's own answer is
//! printed as it came. Exit status: 0 done, 1 refused by the service or failed, 2 wrong usage, 3 not reachable.

mod args;
mod audit;
mod backup;
mod bench;
mod call;
mod certs;
mod cluster;
mod conformance;
mod dev;
mod failure;
mod fingerprint;
mod inspect;
mod keys;
mod node;
mod policy;
mod progress;
mod proxy;
mod reconcile;
mod records;
mod restore;
mod show;
mod standing;
mod tenant;
#[cfg(test)]
mod tests;
mod token;
#[cfg(feature = "otel")]
mod traces;
mod verify;

use std::{io, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};

use failure::Failure;

/// One caller intent, one durable outcome: a replicated idempotency store.
#[derive(Debug, Parser)]
#[command(name = "semel", version, max_term_width = 100, after_help = EXIT_STATUS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str =
    "Exit status: 0 done, 1 refused by the service (stderr says why), 2 wrong usage, 3 not reachable.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a node or several to try things with: ready to take claims, nothing else needed.
    Dev(dev::Dev),
    /// Start a node by its configuration file.
    Serve(node::Serve),
    /// Make a service's requests safe to repeat: a reverse proxy for the Idempotency-Key header.
    Proxy(proxy::Proxy),
    /// Try a resource of anybody's against what the Idempotency-Key header field asks.
    Conformance(conformance::Conformance),
    /// Form a cluster, change it, see how it is.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Ask to own a record. Every answer, `conflict` and `in_progress` too, is exit status 0.
    Claim(records::Claim),
    /// Say that the effect is about to start: staged becomes begun.
    Begin(records::Begin),
    /// Extend the lease.
    Renew(records::Renew),
    /// Keep a recovery point for whoever takes over or investigates.
    Checkpoint(records::Checkpoint),
    /// Report the outcome. Returns once it is durable.
    Complete(records::Complete),
    /// Say that no effect happened: the key can be claimed again.
    Release(records::Release),
    /// Say that you don't know what happened: nothing runs again until it is resolved.
    Suspend(records::Suspend),
    /// Read a record without claiming it.
    Get(records::Get),
    /// List records.
    List(records::List),
    /// What happened to a record, oldest first.
    History(records::History),
    /// Take up an indeterminate record, so that nobody else resolves it meanwhile.
    Investigate(reconcile::Investigate),
    /// Settle an indeterminate record.
    Resolve(reconcile::Resolve),
    /// Erase a completed outcome early. The evidence stays: the key never runs again within its window.
    Forget(reconcile::Forget),
    /// What a tenant or one of its operations allows.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Who may call: tokens.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// What was done: the audit chains.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Make certificates: authorities, and those of nodes and clients.
    Certs(certs::Certs),
    /// The keys that everything is sealed under.
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// The end of a tenant: its keys destroyed, its name never used again.
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// Fetch the state of the cluster into a directory, while it goes on.
    Backup(backup::Backup),
    /// Make a new cluster from a backup.
    Restore(restore::Restore),
    /// Read a backup, or the disk of a stopped node, to its last byte.
    Verify(verify::Verify),
    /// What lies on a stopped node's disk.
    Inspect(inspect::Inspect),
    /// The fingerprint of a request, or where two requests differ.
    Fingerprint(fingerprint::Fingerprint),
    /// How many intents a second a service settles.
    Bench(bench::Bench),
    /// Print the completions of a shell.
    #[command(after_help = "Example: semel completions bash > /etc/bash_completion.d/semel")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

impl Command {
    fn run(self) -> Result<(), Failure> {
        match self {
            Command::Dev(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Proxy(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Conformance(command) => command.run(),
            Command::Cluster(command) => command.run(),
            Command::Claim(command) => command.run(),
            Command::Begin(command) => command.run(),
            Command::Renew(command) => command.run(),
            Command::Checkpoint(command) => command.run(),
            Command::Complete(command) => command.run(),
            Command::Release(command) => command.run(),
            Command::Suspend(command) => command.run(),
            Command::Get(command) => command.run(),
            Command::List(command) => command.run(),
            Command::History(command) => command.run(),
            Command::Investigate(command) => command.run(),
            Command::Resolve(command) => command.run(),
            Command::Forget(command) => command.run(),
            Command::Policy(command) => command.run(),
            Command::Token(command) => command.run(),
            Command::Audit(command) => command.run(),
            Command::Certs(command) => command.run(),
            Command::Keys(command) => command.run(),
            Command::Tenant(command) => command.run(),
            Command::Backup(command) => command.run(),
            Command::Restore(command) => command.run(),
            Command::Verify(command) => command.run(),
            Command::Inspect(command) => command.run(),
            Command::Fingerprint(command) => command.run(),
            Command::Completions { shell } => {
                clap_complete::generate(shell, &mut Cli::command(), "semel", &mut io::stdout());
                Ok(())
            }
        }
    }
}
