//! The values of a parameter: texts that are of some form, texts made from the schema's pattern, and those with a
//! character more, less or changed. The schema says which of them are allowed.

use std::collections::BTreeSet;

use proptest::prelude::Rng;
use proptest::strategy::{Strategy, ValueTree};
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;
use regex::Regex;
use serde_json::Value;

use super::Parameter;

/// Texts made from a pattern, and changed ones of each.
const MADE: usize = 12;
const CHANGED: usize = 3;

/// Texts at the edges of what parameters may be, and what the daemon of the test knows.
const TEXTS: &str = "0 00 1 -1 +1 01 1.5 1e3 1000000 1000001 18446744073709551615 18446744073709551616 \
    9999999999999999999 99999999999999999999 a A / a/b a/ /b a/b/c * % é true TRUE false yes null text Text json sse OK ok held \
    Static static host Host pod outside 0:0 0.0.0.0 0.0.0.0:1 :: ::: ::1 [::1] 1::2::3 1:2:3:4:5:6:7:: ::2:3:4:5:6:7:8 \
    1:2:3:4:5:6:7:8 1:2:3:4:5:6:7:8:9 1:2:3:4:5:6:7 ::ffff:192.0.2.1 1:2:3:4:5:6:7:192.0.2.1 1:2:3:4:5:6:192.0.2.1 \
    1:2:3:4:5::192.0.2.1 1::192.0.2.1 12345:: 192.0.2.1 192.0.2.01 192.0.2.256 192.0.2 192.0.2.1. 192.0.2.1: 192.0.2.1:0 \
    192.0.2.1:80 192.0.2.1:080 192.0.2.1:65535 192.0.2.1:65536 [192.0.2.1] [192.0.2.1]:80 192.0.2.1:80/TCP 192.0.2.1:80/tcp \
    192.0.2.1:80/ICMP 192.0.2.1:80/ [2001:db8::1]:80 [2001:db8::1]:0 [2001:db8::1]:80/UDP 2001:db8::1:80/UDP fe80::1%1 \
    [fe80::1%1]:80 [fe80::1%0]:80 localhost:80 1s 0s 1d 366d 1h30m 30m1h 1s1s 1.5h 1m1ms 1ms1m 999999999d 1000000000s shop/web \
    infra/dns shop 198.51.100.10 198.51.100.10:80 198.51.100.12:53/UDP [2001:db8:f::10]:80 203.0.113.12 203.0.113.12:8080";
/// Texts with characters that could be lost on the way.
const ODD: [&str; 6] = ["", " ", "\u{0}", "\n", "192.0.2.1\n", "a/b\n"];

/// A regular expression of the document.
pub(crate) fn expression(pattern: &Value) -> Regex {
    Regex::new(pattern.as_str().expect("a pattern is a text")).expect("a regular expression")
}

pub(crate) fn parameter(described: &Value, runner: &mut TestRunner) -> Parameter {
    let schema = &described["schema"];
    let allows = rule(schema);
    let (allowed, forbidden): (BTreeSet<String>, BTreeSet<String>) =
        candidates(schema, runner).into_iter().partition(|text| allows(text));
    let name = described["name"].as_str().expect("a name").to_owned();
    assert!(!allowed.is_empty() && !forbidden.is_empty(), "{name}: {allowed:?}, {forbidden:?}");
    Parameter {
        name,
        is_required: described["required"] == true,
        allowed: allowed.into_iter().collect(),
        forbidden: forbidden.into_iter().collect(),
    }
}

/// What the schema of a parameter allows.
fn rule(schema: &Value) -> Box<dyn Fn(&str) -> bool + '_> {
    let keywords: Vec<&str> = schema.as_object().expect("a schema").keys().map(String::as_str).collect();
    match keywords[..] {
        ["enum", "type"] => Box::new(|text| schema["enum"].as_array().expect("a list").contains(&text.into())),
        ["pattern", "type"] => {
            let pattern = expression(&schema["pattern"]);
            Box::new(move |text| pattern.is_match(text))
        }
        _ => {
            assert_eq!(keywords, ["maximum", "minimum", "type"], "the keywords of a schema that this test knows");
            let bounds = schema["minimum"].as_u64().expect("a number")..=schema["maximum"].as_u64().expect("a number");
            Box::new(move |text| text.parse().is_ok_and(|it| bounds.contains(&it) && it.to_string() == text))
        }
    }
}

fn candidates(schema: &Value, runner: &mut TestRunner) -> BTreeSet<String> {
    let long = [253, 254, 5_000].map(|length| "x".repeat(length));
    let in_names = long.iter().flat_map(|long| [long.clone(), format!("{long}/y"), format!("y/{long}")]);
    let mut all: BTreeSet<String> = TEXTS.split(' ').chain(ODD).map(str::to_owned).chain(in_names).collect();
    let of_schema = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let bounds = ["minimum", "maximum"].into_iter().filter_map(|bound| schema[bound].as_u64());
    let around = bounds.flat_map(|bound| [bound.saturating_sub(1), bound, bound + 1]).map(|number| number.to_string());
    let made = schema["pattern"].as_str().map(|pattern| made(pattern, runner)).unwrap_or_default();
    let of_schema: Vec<String> = of_schema.chain(around).chain(made).collect();
    for text in &of_schema {
        all.extend((0..CHANGED).map(|_| changed(text, runner)));
    }
    all.extend(of_schema);
    all
}

/// Texts that match the pattern.
fn made(pattern: &str, runner: &mut TestRunner) -> Vec<String> {
    let inner = pattern.trim_start_matches('^').trim_end_matches('$');
    let strategy = string_regex(inner).expect("a pattern without anchors inside");
    (0..MADE).map(|_| strategy.new_tree(runner).expect("a text").current()).collect()
}

/// The text with a character more, less, changed, or in the other case.
fn changed(text: &str, runner: &mut TestRunner) -> String {
    let mut some = |number: usize| runner.rng().next_u32() as usize % number;
    let mut characters: Vec<char> = text.chars().collect();
    let at = some(characters.len() + 1);
    let other = ['0', '9', 'a', 'Z', '.', ':', '/', '%', '-', '[', ']', ' ', '\n', 'é'][some(14)];
    match (some(4), at < characters.len()) {
        (0, true) => drop(characters.remove(at)),
        (1, true) => characters[at] = other,
        (2, true) if characters[at].is_ascii_lowercase() => characters[at] = characters[at].to_ascii_uppercase(),
        (2, true) => characters[at] = characters[at].to_ascii_lowercase(),
        _ => characters.insert(at, other),
    }
    characters.into_iter().collect()
}
