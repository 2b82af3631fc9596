//! Metrics in the text format of Prometheus, version 0.0.4, from OpenMetrics text. The samples are the same; the names
//! and types in comments are those of the samples.

use super::table::METRICS;

pub(in crate::admin) fn plain(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines() {
        let comment = line.strip_prefix("# ").and_then(|rest| {
            let mut words = rest.splitn(3, ' ');
            Some((words.next()?, words.next(), words.next()))
        });
        match comment {
            None => out.push_str(line),
            Some((what @ "HELP", Some(family), Some(text))) => {
                out.push_str(&format!("# {what} {} {text}", name(family)));
            }
            Some((what @ "TYPE", Some(family), Some(kind))) => {
                let kind = if kind == "info" { "gauge" } else { kind };
                out.push_str(&format!("# {what} {} {kind}", name(family)));
            }
            // Units and the end of the text have no form of their own.
            Some(_) => continue,
        }
        out.push('\n');
    }
    out
}

/// The name of the samples of a family.
fn name(family: &str) -> &str {
    METRICS.iter().find(|metric| metric.family() == family).map_or(family, |metric| metric.name)
}

#[cfg(test)]
#[path = "tests/plain.rs"]
mod tests;
