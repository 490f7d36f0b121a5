//! The language of scenarios. A line is a verb, at most one key, and `name=value` arguments, then `→` and the answer.
//!
//! ```text
//! claim order-7 fp=a lease=10s staged at=0s      → new fence=1
//! ```
//!
//! Times are sums of terms with a unit (`10s`, `24h-1ms`, `-40d`), counted from the start of the scenario. Positions are
//! the numbers of the record commands so far: `fence=3` is the grant that the third one made. So a scenario says nothing
//! about how often anything was swept.

use std::{collections::BTreeMap, fmt};

/// A line of a scenario without its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What is done.
    pub verb: String,
    /// Words without a value: the key of the record first, then flags.
    pub words: Vec<String>,
    /// Words with a value.
    pub values: BTreeMap<String, String>,
}

impl Line {
    pub fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let verb = words.next().expect("a line has a verb").to_owned();
        let mut line = Line { verb, words: Vec::new(), values: BTreeMap::new() };
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => drop(line.values.insert(name.to_owned(), value.to_owned())),
                None => line.words.push(word.to_owned()),
            }
        }
        line
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub fn key(&self) -> &str {
        self.words.first().unwrap_or_else(|| panic!("`{self}` names no key"))
    }

    pub fn flag(&self, name: &str) -> bool {
        self.words.iter().any(|word| word == name)
    }

    /// A time or a length, ms.
    pub fn ms(&self, name: &str) -> Option<i64> {
        self.value(name).map(|text| parse_ms(text).unwrap_or_else(|| panic!("{name}={text} in `{self}` is no time")))
    }

    /// A length, ms, as it stands in a command.
    pub fn length_ms(&self, name: &str) -> Option<u32> {
        self.ms(name).map(|ms| u32::try_from(ms).expect("a length in a scenario fits 32 bits"))
    }

    /// A length in whole seconds.
    pub fn length_s(&self, name: &str) -> Option<u32> {
        self.ms(name).map(|ms| u32::try_from(ms / 1000).expect("a length in a scenario fits 32 bits"))
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.value(name).map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} in `{self}` is no number")))
    }

    pub fn tenant(&self) -> &str {
        self.value("tenant").unwrap_or("acme")
    }

    pub fn operation(&self) -> &str {
        self.value("op").unwrap_or("charge")
    }

    /// Whether the line is a command on a record: these are numbered.
    pub fn is_record_command(&self) -> bool {
        const VERBS: [&str; 10] = [
            "claim",
            "begin",
            "renew",
            "checkpoint",
            "complete",
            "release",
            "suspend",
            "investigate",
            "resolve",
            "forget",
        ];
        VERBS.contains(&self.verb.as_str())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.verb)?;
        self.words.iter().try_for_each(|word| write!(f, " {word}"))?;
        let (at, others): (Vec<_>, Vec<_>) = self.values.iter().partition(|(name, _)| *name == "at");
        others.iter().chain(&at).try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A sum of terms with units, ms; `None` where the text is none.
pub fn parse_ms(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut sum = 0;
    while !rest.is_empty() {
        let sign = if rest.starts_with('-') { -1 } else { 1 };
        let unsigned = rest.trim_start_matches(['-', '+']);
        let digits = unsigned.find(|c: char| !c.is_ascii_digit())?;
        let unit_end = unsigned[digits..].find(['-', '+']).map_or(unsigned.len(), |end| digits + end);
        let factor = match &unsigned[digits..unit_end] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        sum += sign * unsigned[..digits].parse::<i64>().ok()? * factor;
        rest = &unsigned[unit_end..];
    }
    (!text.is_empty()).then_some(sum)
}

/// Whether an answer is what a scenario expects: the same first word, and every word and value that it names.
pub fn answers(expected: &str, got: &str) -> bool {
    let (expected, got) = (Line::parse(expected), Line::parse(got));
    let same = |wanted: &str, found: &str| {
        wanted == found || (parse_ms(wanted).is_some() && parse_ms(wanted) == parse_ms(found))
    };
    expected.verb == got.verb
        && expected.words.iter().all(|word| got.words.contains(word))
        && expected.values.iter().all(|(name, wanted)| got.value(name).is_some_and(|found| same(wanted, found)))
}

#[test]
fn times_are_sums_of_terms() {
    for (text, ms) in [("10s", 10_000), ("24h-1ms", 86_399_999), ("-40d+1ms", -3_455_999_999)] {
        assert_eq!(parse_ms(text), Some(ms), "{text}");
    }
    for no_time in ["10", "", "x", "1m30s"] {
        assert_eq!(parse_ms(no_time), None, "{no_time}");
    }
}

#[test]
fn an_answer_may_say_more_than_is_expected() {
    assert!(answers("new fence=1 deadline=10s", "new deadline=10000ms fence=1 attempt=1"));
    assert!(!answers("new fence=2", "new fence=1") && !answers("new staged", "new") && !answers("new", "expired"));
}
