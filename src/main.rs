//! The `semel` binary.

/// glibc's allocator keeps the pages of short-lived bursts; this one gives them back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    semel::cli::run()
}
