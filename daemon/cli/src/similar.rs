//! Names similar to one that does not exist. Pure.

use strsim::osa_distance;

/// Maximum number of suggestions.
pub(crate) const MOST: usize = 5;

/// Maximum length of a name that is compared letter by letter.
pub(crate) const MAX_COMPARED: usize = 128;

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
