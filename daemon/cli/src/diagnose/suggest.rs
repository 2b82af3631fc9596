//! What the user may have meant: names similar to one that does not exist, and pods with almost the labels of a
//! selector. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use strsim::osa_distance;

use super::objects;

/// Maximum number of suggestions.
const MOST: usize = 5;

/// Maximum length of a name that is compared letter by letter.
const MAX_COMPARED: usize = 128;

/// Returns the names similar to `wanted` (`namespace/name`), the most similar first: the same name in another
/// namespace, a name with the same beginning or end, a name with a few different letters.
pub(crate) fn similar_names<'n>(wanted: &str, known: impl Iterator<Item = &'n str>) -> impl Iterator<Item = &'n str> {
    let mut near: Vec<(usize, &str)> = known.filter_map(|name| Some((distance_of(wanted, name)?, name))).collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(MOST)
}

fn distance_of(wanted: &str, known: &str) -> Option<usize> {
    let (of_wanted, name) = wanted.split_once('/').unwrap_or(("", wanted));
    let (of_known, other) = known.split_once('/').unwrap_or(("", known));
    let apart = usize::from(of_wanted != of_known);
    if name == other {
        return Some(apart);
    }
    let few = (name.len().min(other.len()) / 3).max(1);
    let letters = if name.len().max(other.len()) <= MAX_COMPARED { osa_distance(name, other) } else { usize::MAX };
    if letters <= few && name.len().min(other.len()) > 1 {
        return Some(letters + 2 * apart);
    }
    let contains = name.len().min(other.len()) >= 3 && (other.contains(name) || name.contains(other));
    (contains && apart == 0).then_some(few + 1)
}

/// A label that differs from the selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Differs<'a> {
    pub(super) label: &'a str,
    pub(super) wanted: &'a str,
    /// The value of the pod's label; `None` if the pod does not have the label.
    pub(super) has: Option<&'a str>,
}

/// Returns the pods that come closest to a selector, with the labels that differ. A pod that matches no label is left
/// out.
pub(super) fn similar_pods<'a>(
    selector: &'a BTreeMap<String, String>,
    pods: &'a [Pod],
) -> Vec<(&'a Pod, Vec<Differs<'a>>)> {
    let differs = |pod: &'a Pod| -> Vec<Differs<'a>> {
        let each = selector.iter().filter_map(|(label, wanted)| {
            let has = objects::label(&pod.metadata, label);
            (has != Some(wanted)).then_some(Differs { label, wanted, has })
        });
        each.collect()
    };
    let likeness = |differing: &[Differs<'_>]| -> (usize, usize) {
        let letters = differing.iter().map(|it| match it.has {
            Some(has) if has.len().max(it.wanted.len()) <= MAX_COMPARED => osa_distance(has, it.wanted),
            _ => MAX_COMPARED,
        });
        (differing.len(), letters.sum())
    };
    let mut near: Vec<_> = pods.iter().map(|pod| (pod, differs(pod))).collect();
    near.retain(|(_, differing)| differing.len() < selector.len() || differing.iter().any(|it| it.has.is_some()));
    near.sort_by_key(|(_, differing)| likeness(differing));
    near.truncate(MOST);
    near
}

#[cfg(test)]
#[path = "tests/suggest.rs"]
mod tests;
