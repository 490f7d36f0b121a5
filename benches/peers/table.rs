//! What was seen, as one table: of all rounds the middle one, and latencies of all of them together.

use super::{drive::Seen, measure::percentile_ms};

/// What the others are compared with, where it was measured: (name, heading).
const COMPARED: [(&str, &str); 4] =
    [("etcd-3", "etcd-3"), ("postgres-2", "pg-2"), ("redis-1", "redis-1"), ("before-", "before")];

#[derive(Default)]
struct Row {
    concurrent: usize,
    name: String,
    rounds: Vec<Seen>,
    resident_mib: f64,
}

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Row {
    fn rates(&self) -> Vec<f64> {
        self.rounds.iter().map(|seen| seen.cycles as f64 / seen.seconds).collect()
    }

    /// How much more than in another row: the middle of what each round shows.
    fn ratio(&self, other: &Row) -> f64 {
        middle(self.rates().iter().zip(other.rates()).map(|(own, other)| own / other).collect())
    }

    fn line(&self) -> String {
        let mut latencies: Vec<u32> = self.rounds.iter().flat_map(|seen| seen.latencies.iter().copied()).collect();
        latencies.sort_unstable();
        let cycles: f64 = self.rounds.iter().map(|seen| seen.cycles as f64).sum();
        let sum = |of: &dyn Fn(&Seen) -> f64| self.rounds.iter().map(of).sum::<f64>();
        format!(
            "{:<22} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>9.3} {:>8.3} {:>8.0} {:>8.0}",
            self.name,
            middle(self.rates()),
            percentile_ms(&latencies, 0.5),
            percentile_ms(&latencies, 0.99),
            percentile_ms(&latencies, 0.999),
            sum(&|seen| seen.servers.processor_s) / cycles * 1000.0,
            sum(&|seen| seen.callers_s) / cycles * 1000.0,
            sum(&|seen| seen.servers.written_bytes) / cycles,
            self.resident_mib,
        )
    }
}

impl Table {
    pub fn add(&mut self, concurrent: usize, name: &str, seen: Seen, resident_mib: f64) {
        let found = self.rows.iter().position(|row| row.concurrent == concurrent && row.name == name);
        let at = found.unwrap_or_else(|| {
            self.rows.push(Row { concurrent, name: name.to_owned(), ..Row::default() });
            self.rows.len() - 1
        });
        self.rows[at].rounds.push(seen);
        self.rows[at].resident_mib = resident_mib;
    }

    pub fn print(&self, concurrent: usize) {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.concurrent == concurrent).collect();
        let other = |row: &Row, name: &str| {
            // The build before is compared door by door.
            let name = if name == "before-" { format!("before-{}", row.name) } else { name.to_owned() };
            rows.iter().find(|row| row.name == name).copied()
        };
        let compared: Vec<_> =
            COMPARED.iter().filter(|(name, _)| rows.iter().any(|row| row.name.starts_with(name))).collect();
        println!(
            "\n{:<22} {:>9} {:-^26} {:-^18} {:>8} {:>8}",
            "", "", " a write, ms ", " s/1,000 cycles ", "written", "resident"
        );
        print!(
            "{:<22} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}",
            format!("{concurrent} callers"),
            "cycles/s",
            "p50",
            "p99",
            "p99.9",
            "servers",
            "callers",
            "B/cycle",
            "MiB"
        );
        compared.iter().for_each(|(_, heading)| print!(" {:>9}", format!("x {heading}")));
        println!();
        for row in &rows {
            print!("{}", row.line());
            for (name, _) in &compared {
                match other(row, name) {
                    Some(other) => print!(" {:>9.2}", row.ratio(other)),
                    None => print!(" {:>9}", "-"),
                }
            }
            println!();
        }
    }
}
