//! Extracts metrics and labels from a PromQL expression: each must be in the table of metrics, with
//! these labels and values. This is not a full parser: `make lint` runs promtool where it is
//! installed.

use nodelb::admin::metrics::{METRICS, Metric, MetricKind};

use crate::prose;

/// Labels that Prometheus adds to each sample, and the metric it adds for each target.
const TARGET_LABELS: [&str; 2] = ["instance", "job"];
const TARGET_METRIC: &str = "up";

/// Keywords that are followed by a list of labels.
const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// Keywords between metrics.
const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

/// A metric in an expression; `None` for the one that Prometheus adds.
type Named = Option<&'static Metric>;

/// Checks an expression; returns its metrics.
pub(crate) fn check(expression: &str) -> Result<Vec<Named>, String> {
    is_balanced(expression)?;
    let mut reader = Reader { rest: expression, named: Vec::new(), grouped: Vec::new() };
    while let Some(c) = reader.rest.chars().next() {
        match c {
            'a'..='z' | 'A'..='Z' | '_' => reader.word()?,
            '[' => reader.range()?,
            '"' => _ = reader.enclosed('"')?,
            '0'..='9' => _ = reader.take(|c| c.is_ascii_alphanumeric() || c == '.'),
            _ => reader.rest = &reader.rest[c.len_utf8()..],
        }
    }
    let Reader { named, grouped, .. } = reader;
    if named.is_empty() {
        return Err("names no metric".into());
    }
    for label in grouped {
        if !named.iter().any(|metric| has_label(*metric, label)) {
            return Err(format!("no metric here has the label {label}"));
        }
    }
    Ok(named)
}

struct Reader<'e> {
    rest: &'e str,
    named: Vec<Named>,
    grouped: Vec<&'e str>,
}

impl<'e> Reader<'e> {
    /// Takes characters as long as the predicate holds.
    fn take(&mut self, is_such: impl Fn(char) -> bool) -> &'e str {
        let (taken, rest) = self.rest.split_at(self.rest.find(|c| !is_such(c)).unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// The text between the opening character, which comes next, and the closing one.
    fn enclosed(&mut self, closing: char) -> Result<&'e str, String> {
        let (inside, rest) = self.rest[1..].split_once(closing).ok_or_else(|| format!("no {closing}"))?;
        self.rest = rest;
        Ok(inside)
    }

    fn word(&mut self) -> Result<(), String> {
        let word = self.take(|c| c.is_ascii_alphanumeric() || c == '_');
        let next = self.rest.trim_start();
        let is_called = ["(", "by ", "by(", "without ", "without("].iter().any(|begin| next.starts_with(begin));
        if GROUPING.contains(&word) {
            self.rest = self.rest.trim_start();
            let labels = self.enclosed(')')?;
            self.grouped.extend(labels.split(',').map(str::trim).filter(|label| !label.is_empty()));
        } else if !is_called && !OPERATORS.contains(&word) {
            let metric = find(word)?;
            if self.rest.starts_with('{') {
                check_matchers(metric, self.enclosed('}')?).map_err(|error| format!("{word}: {error}"))?;
            }
            self.named.push(metric);
        }
        Ok(())
    }

    fn range(&mut self) -> Result<(), String> {
        let range = self.enclosed(']')?;
        if is_duration(range) || range == "$__rate_interval" {
            Ok(())
        } else {
            Err(format!("[{range}] is no duration"))
        }
    }
}

/// The metric with this sample name. A histogram has samples for buckets, sum and count.
fn find(name: &str) -> Result<Named, String> {
    if name == TARGET_METRIC {
        return Ok(None);
    }
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let metric = METRICS.iter().copied().find(|metric| metric.name == name || metric.name == base);
    match metric
        .filter(|metric| prose::is_sample(name) && (metric.kind != MetricKind::Histogram || metric.name != name))
    {
        Some(metric) => Ok(Some(metric)),
        None => Err(format!("there is no metric {name}")),
    }
}

pub(crate) fn has_label(metric: Named, label: &str) -> bool {
    let own = metric.map_or(&[][..], |metric| &metric.labels);
    let is_bound = label == "le" && metric.is_some_and(|metric| metric.kind == MetricKind::Histogram);
    TARGET_LABELS.contains(&label) || is_bound || own.iter().any(|own| own.name == label)
}

/// Checks `label="value",...`: a label with listed values must have one of them.
fn check_matchers(metric: Named, matchers: &str) -> Result<(), String> {
    for matcher in matchers.split(',') {
        let (label, rest) = matcher.split_at(matcher.find(['=', '!']).ok_or("a matcher without = or !=")?);
        if !has_label(metric, label) {
            return Err(format!("no label {label}"));
        }
        let value =
            ["=~", "!~", "!=", "="].iter().find_map(|operator| rest.strip_prefix(operator)).ok_or("no operator")?;
        let value =
            value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).ok_or("a value without quotes")?;
        let own = metric.and_then(|metric| metric.labels.iter().find(|own| own.name == label));
        let listed: Vec<_> = own.map_or(Vec::new(), |own| own.values.split(", ").collect());
        if !rest.contains('~') && listed.len() > 1 && !listed.contains(&value) {
            return Err(format!("{label} is never {value}"));
        }
    }
    Ok(())
}

fn is_balanced(expression: &str) -> Result<(), String> {
    let (mut open, mut is_text) = (Vec::new(), false);
    for c in expression.chars() {
        match c {
            '"' => is_text = !is_text,
            _ if is_text => {}
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(c) => return Err(format!("{c} closes nothing")),
            _ => {}
        }
    }
    if open.is_empty() && !is_text { Ok(()) } else { Err("something is not closed".into()) }
}

/// A Prometheus duration, such as `90s` or `1h30m`.
pub(crate) fn is_duration(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let unit = ["ms", "s", "m", "h", "d", "w", "y"].into_iter().find(|unit| rest[digits..].starts_with(unit));
        let Some(unit) = unit.filter(|_| digits > 0) else { return false };
        rest = &rest[digits + unit.len()..];
    }
    !text.is_empty()
}

#[test]
fn wrong_expressions_are_found() {
    assert!(check("sum by (status) (nodelb_frontends{status=\"OK\"}) > 0.5").is_ok());
    assert!(
        check("histogram_quantile(0.9, sum by (le) (rate(nodelb_event_to_kernel_duration_seconds_bucket[5m])))")
            .is_ok()
    );
    for (expression, why) in [
        ("nodelb_frontend", "there is no metric"),
        ("nodelb_event_to_kernel_duration_seconds", "there is no metric"),
        ("nodelb_frontends{state=\"Done\"}", "no label state"),
        ("nodelb_frontends{status=\"done\"}", "never done"),
        ("sum by (zone) (nodelb_frontends)", "has the label zone"),
        ("sum(nodelb_frontends", "not closed"),
        ("rate(nodelb_reconciles_total[5])", "no duration"),
        ("1 + 1", "names no metric"),
    ] {
        let error = check(expression).map(|_| ()).unwrap_err();
        assert!(error.contains(why), "{expression}: {error}");
    }
}
