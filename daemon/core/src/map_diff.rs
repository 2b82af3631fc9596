//! The parts of a difference between two persistent maps.

use imbl::ordmap::DiffItem;

pub fn key_of<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> &'a K {
    match item {
        DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => key,
    }
}

/// The value of the key before and after; `None` where the map does not have it.
pub fn sides<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> [Option<&'a V>; 2] {
    match item {
        DiffItem::Add(_, new) => [None, Some(*new)],
        DiffItem::Remove(_, old) => [Some(*old), None],
        DiffItem::Update { old: (_, old), new: (_, new) } => [Some(*old), Some(*new)],
    }
}
