#![doc = include_str!("problems.md")]

use crate::refusal::Code;

/// Where the `type` of every problem lies: this page.
pub const BASE: &str = "https://docs.rs/semel/latest/semel/problems/#";

const PAGES: &str = include_str!("problems.md");

/// The name of a code's problem: the last part of its `type`.
pub fn name(code: Code) -> String {
    code.as_str().replace('_', "-")
}

/// The `type` of a code's problem.
pub fn url(code: Code) -> String {
    format!("{BASE}{}", name(code))
}

/// The part of this page about one problem, as text; none for names it doesn't know.
pub fn page(name: &str) -> Option<&'static str> {
    let heading = |section: &&str| section.lines().next() == Some(name);
    PAGES.split("\n## ").skip(1).find(heading).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Effect;

    #[test]
    fn every_code_has_its_part_and_no_other_is_there() {
        for code in Code::ALL {
            assert!(page(&name(*code)).is_some(), "{code} is not described in problems.md");
        }
        assert_eq!(PAGES.matches("\n## ").count(), Code::ALL.len());
    }

    #[test]
    fn every_part_says_what_the_table_says() {
        for code in Code::ALL {
            let page = page(&name(*code)).unwrap();
            let retryable = if code.retryable() { "retryable" } else { "not retryable" };
            let effect = match code.effect() {
                Effect::None => "effect none",
                Effect::Unknown => "effect unknown",
            };
            let first = format!("HTTP {} · gRPC {:?} · {retryable} · {effect}.", code.http(), code.grpc());
            assert_eq!(page.lines().nth(2), Some(first.as_str()), "{code}");
        }
    }

    #[test]
    fn only_whole_names_find_a_part() {
        assert_eq!(page("stale"), None);
        assert_eq!(page(""), None);
        assert!(page("stale-fence").unwrap().starts_with("stale-fence\n"));
    }
}
