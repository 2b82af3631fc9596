//! Pods with almost the labels of a selector. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use strsim::osa_distance;

use super::objects;
use crate::similar::{MAX_COMPARED, MOST};

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
