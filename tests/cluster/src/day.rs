//! What the flows of a day in small counted with nodelb and with kube-proxy, as Markdown.

use std::collections::BTreeMap;

use crate::Judged;
use crate::handover::Phase;

/// Exchanges, and how many of them failed.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    exchanges: u64,
    failed: u64,
}

/// Sums by kind (`new-tcp` and so on).
fn sums(phase: &Phase) -> BTreeMap<&str, Sum> {
    let mut sums: BTreeMap<_, Sum> = BTreeMap::new();
    for (_, count) in phase.counts() {
        let sum = sums.entry(count.flow.rsplit(' ').next().unwrap_or_default()).or_default();
        sum.exchanges += count.ok + count.failed;
        sum.failed += count.failed;
    }
    sums
}

/// The table; a problem if more exchanges fail with nodelb than with kube-proxy, or if a flow had no answer.
pub(crate) fn table(phases: &[Phase]) -> Judged {
    let mut text = String::from(
        "| flows | nodelb: exchanges | failed | kube-proxy: exchanges | failed |\n|---|---|---|---|---|\n",
    );
    let [nodelb, kube_proxy] = phases else {
        return Judged { text, problems: vec![format!("{} runs, expected two", phases.len())] };
    };
    let mut problems: Vec<_> = nodelb
        .counts()
        .filter(|(_, count)| count.ok == 0)
        .map(|(place, count)| format!("{place}: {}: none succeeded ({})", count.flow, count.failures))
        .collect();
    let others = sums(kube_proxy);
    for (kind, sum) in sums(nodelb) {
        let other = others.get(kind).copied().unwrap_or_default();
        let cells = (sum.exchanges, sum.failed, other.exchanges, other.failed);
        text.push_str(&format!("| {kind} | {} | {} | {} | {} |\n", cells.0, cells.1, cells.2, cells.3));
        if sum.failed > other.failed {
            problems.push(format!("{kind}: {} failed with nodelb, {} with kube-proxy", sum.failed, other.failed));
        }
    }
    for phase in phases {
        for (place, count) in phase.counts().filter(|(_, count)| count.failed > 0) {
            let all = count.ok + count.failed;
            text.push_str(&format!(
                "\n- {}: {place}: {}: {} of {all} failed ({})",
                phase.name(),
                count.flow,
                count.failed,
                count.failures
            ));
        }
    }
    Judged { text: text.trim_end().to_owned(), problems }
}

#[cfg(test)]
#[path = "tests/day.rs"]
mod tests;
