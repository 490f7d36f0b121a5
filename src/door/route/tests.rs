//! Patterns, and which route is taken.

use proptest::prelude::*;

use super::*;

fn matches(pattern: &str, method: &str, path: &str) -> bool {
    Pattern::parse(pattern).unwrap().matches(&method.parse().unwrap(), path)
}

#[test]
fn segments_match_by_themselves() {
    for (pattern, path, wanted) in [
        ("POST /orders", "/orders", true),
        ("POST /orders", "/orders/", false),
        ("POST /orders", "/Orders", false),
        ("POST /orders/", "/orders/", true),
        ("POST /orders/{id}", "/orders/7", true),
        ("POST /orders/{id}", "/orders/", false),
        ("POST /orders/{id}", "/orders/7/lines", false),
        ("POST /orders/{id}/lines", "/orders/%2F/lines", true),
        ("POST /orders/{*rest}", "/orders/7/lines", true),
        ("POST /orders/{*rest}", "/orders", false),
        ("POST /orders/{*rest}", "/orders/", true),
        ("POST /{*rest}", "/", true),
        ("POST /", "/", true),
        ("POST /", "*", false),
    ] {
        assert_eq!(matches(pattern, "POST", path), wanted, "{pattern} against {path}");
    }
    assert!(!matches("POST /orders", "PUT", "/orders"));
}

#[test]
fn wrong_patterns_say_why() {
    for pattern in [
        "",
        "POST",
        "/orders",
        "post /orders",
        "POST orders",
        "POST /orders?x=1",
        "POST /a b",
        "POST /{}",
        "POST /a{id}",
        "POST /{*rest}/a",
        "CONNECT /a",
    ] {
        let error = Pattern::parse(pattern).unwrap_err().to_string();
        assert!(error.contains("a route matches METHOD and path"), "{pattern}: {error}");
    }
}

#[test]
fn the_first_route_that_matches_is_taken() {
    let route = |pattern, key| Route { pattern: Some(Pattern::parse(pattern).unwrap()), key, ..Route::default() };
    let routes = Routes::new(
        vec![route("POST /orders/{id}", KeyRule::Required), route("POST /{*rest}", KeyRule::Ignore)],
        Route::default(),
    );
    assert_eq!(routes.find(&Method::POST, "/orders/7").key, KeyRule::Required);
    assert_eq!(routes.find(&Method::POST, "/other").key, KeyRule::Ignore);
    assert_eq!(routes.find(&Method::PATCH, "/orders/7").key, KeyRule::Optional);
}

#[test]
fn keys_are_looked_at_where_something_is_changed_or_a_route_says_so() {
    let otherwise = Route::default();
    let looked_at = [Method::POST, Method::PATCH, Method::PUT, Method::GET, Method::DELETE];
    assert_eq!(looked_at.map(|method| otherwise.applies_to(&method)), [true, true, false, false, false]);
    let named = Route { pattern: Some(Pattern::parse("PUT /a").unwrap()), ..Route::default() };
    assert!(named.applies_to(&Method::PUT));
    assert!(!Route { key: KeyRule::Ignore, ..named }.applies_to(&Method::PUT));
}

proptest! {
    #[test]
    fn any_text_is_a_pattern_or_refused(text in "(POST |PUT )?[/a-z{}*]{0,20}", path in "/[/a-z]{0,12}") {
        if let Ok(pattern) = Pattern::parse(&text) {
            let _ = pattern.matches(pattern.method(), &path);
        }
    }

    /// A path without braces matches itself and nothing else.
    #[test]
    fn a_plain_path_matches_itself(own in "/[/a-z]{0,12}", other in "/[/a-z]{0,12}") {
        prop_assert_eq!(matches(&format!("POST {own}"), "POST", &other), own == other);
    }
}
