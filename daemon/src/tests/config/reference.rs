//! Generates `docs/configuration.md` from the keys. The accepted values of a key are read from the parser's error for
//! another value.

use super::*;
use crate::generated;

const INTRODUCTION: &str = "\
# Configuration

Generated from the keys in `daemon/src/config/`: `UPDATE=1 cargo test -p nodelb --lib config` rewrites it.

The default of each key in `/etc/nodelb/nodelb.toml`, what the key takes, and whether a change takes effect with
`systemctl reload nodelb` (SIGHUP) or `systemctl restart nodelb`. Neither interrupts connections. What each key does is in
nodelb.toml(5), which also describes when nodelb refuses the file, and in the comments of the file as nodelb installs it
([config.example.toml](../config.example.toml)).

`nodelb check-config` shows every problem at once. `nodelb config` shows the active configuration of a running daemon.
A duration is one or more numbers with a unit (d, h, m, s or ms), the largest unit first, such as `1h30m`.
";

/// The parser's first error for this value of the key, without the key's name.
fn complaint(key: &Key, value: &str) -> Option<String> {
    let problems = Config::parse(&format!("[{}]\n{} = {value}\n", key.section, key.name)).err()?;
    let message = problems.first()?.message.as_str();
    let name = format!("{}.{}: ", key.section, key.name);
    message.strip_prefix(&name).map(str::to_owned)
}

/// The type of a key's value, and the possible values.
fn takes(key: &Key) -> String {
    let refused = complaint(key, "1.5").expect("no key takes this");
    let kind = refused.strip_prefix("expected ").and_then(|text| text.split(", found ").next()).expect(&refused);
    let kind = kind.split(" such as ").next().expect("a kind");
    if let Some(range) = complaint(key, "0").and_then(|text| text.strip_prefix("0 is not in ").map(str::to_owned)) {
        let (first, last) = range.split_once("..=").expect("a range");
        return format!("{kind} from {first} to {last}");
    }
    if let Some(duration) = duration(key) {
        return duration;
    }
    let (probe, link) = if kind == "an array" { ("[\"?\"]", " of ") } else { ("\"?\"", ": ") };
    let choice = complaint(key, probe).and_then(|refused| wanted(&refused));
    match choice {
        Some(choice) if choice.starts_with(kind) => choice,
        Some(choice) => format!("{kind}{link}{choice}"),
        None => kind.to_owned(),
    }
}

/// What the key takes, if that is a duration.
fn duration(key: &Key) -> Option<String> {
    let refused = complaint(key, "\"?\"")?;
    let (_, kind) = refused.split_once(" is not ").or_else(|| refused.split_once(" is neither "))?;
    let kind = kind.strip_prefix("a duration")?;
    let range =
        complaint(key, "\"0s\"").and_then(|text| text.split_once(" is not ").map(|(_, range)| range.to_owned()));
    let kind = match kind.split_once(" nor ") {
        Some((_, other)) => format!(" or {other}"),
        None => kind.split(", such as ").next().expect("a kind").to_owned(),
    };
    Some(format!("a string: a duration{kind}{}", range.map(|range| format!(" {range}")).unwrap_or_default()))
}

/// The expected value, from an error message.
fn wanted(refusal: &str) -> Option<String> {
    if let Some((_, choice)) = refusal.split_once("(expected ") {
        return Some(choice.replacen(')', "", 1).replacen("like ", "values like ", 1));
    }
    let table = refusal.strip_prefix("expected ").and_then(|text| text.split(", found ").next());
    table.or_else(|| refusal.split_once("must be ").map(|(_, what)| what)).map(str::to_owned)
}

/// `docs/configuration.md` has every key, with its type, its default, and how a change takes effect. `UPDATE=1`
/// rewrites it.
#[test]
fn the_reference_is_the_keys() {
    let mut text = INTRODUCTION.to_owned();
    let mut shown = 0;
    let config = Config::default();
    let keys = config.keys();
    for (section, about) in config.sections().map(|section| (section.name(), section.about())) {
        text.push_str(&format!("\n## [{section}]\n\n{}\n\n", about.trim()));
        for key in keys.iter().filter(|key| key.section == section) {
            let change = if key.needs_restart { "restart" } else { "reload" };
            let (name, value) = (&key.name, &key.value);
            text.push_str(&format!("- `{section}.{name}` = `{value}`: {}; {change}\n", takes(key)));
            shown += 1;
        }
    }
    assert_eq!(shown, keys.len(), "a section is missing here");
    generated::is_whole_file("docs/configuration.md", &text);
}
