//! Service ids, and maps with service ids as keys. Copies of such a map share memory, as those of `imbl`. Service ids
//! are assigned one after another, so their digits select the value without a comparison, and nodes become full.

use std::array;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

/// An index into the `services` map, one per [`crate::model::service::PortKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

impl ServiceId {
    /// The canary's service. It never has a backend, so a connection to a canary is always refused.
    pub const CANARY: Self = Self(0);
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The bits of an id that select an entry of one node. A change copies one node of each level that readers share, so
/// larger nodes would make changes more expensive.
const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;

/// A map with service ids as keys, in the order of the ids. Cloning is cheap: copies share what is equal.
#[derive(Clone)]
pub struct IdMap<V> {
    root: Option<Arc<Node<V>>>,
    /// The level of the root. Leaves have level 0.
    height: u32,
    len: usize,
}

/// A node is never empty.
#[derive(Clone)]
enum Node<V> {
    Branch([Option<Arc<Node<V>>>; WIDTH]),
    Leaf([Option<V>; WIDTH]),
}

/// The position of the id in a node of this level.
fn position(id: u32, level: u32) -> usize {
    (id >> (BITS * level)) as usize % WIDTH
}

impl<V> Node<V> {
    fn empty(level: u32) -> Self {
        if level > 0 { Self::Branch(array::from_fn(|_| None)) } else { Self::Leaf(array::from_fn(|_| None)) }
    }

    /// The first leaf for ids from `first` on, with the smallest of its ids.
    fn leaf_from(&self, level: u32, first: u32) -> Option<(u32, &[Option<V>; WIDTH])> {
        let size = 1 << (BITS * level);
        match self {
            Self::Leaf(values) => Some((first - first % (1 << BITS), values)),
            Self::Branch(children) => {
                let start = position(first, level);
                let following = (1..).map(|more: u32| first - first % size + more * size);
                let firsts = std::iter::once(first).chain(following);
                let mut leaves = children[start..].iter().zip(firsts);
                leaves.find_map(|(child, first)| child.as_ref()?.leaf_from(level - 1, first))
            }
        }
    }
}

impl<V> IdMap<V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self { root: None, height: 0, len: 0 }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether both are unchanged clones of one another. May return false for equal contents.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        self.root.as_ref().map(Arc::as_ptr) == other.root.as_ref().map(Arc::as_ptr)
    }

    /// Whether the id fits into a tree of this height.
    fn fits(&self, id: ServiceId) -> bool {
        u64::from(id.0) >> (BITS * (self.height + 1)) == 0
    }

    pub fn get(&self, id: &ServiceId) -> Option<&V> {
        if !self.fits(*id) {
            return None;
        }
        let (mut node, mut level) = (self.root.as_deref()?, self.height);
        loop {
            match node {
                Node::Branch(children) => node = children[position(id.0, level)].as_deref()?,
                Node::Leaf(values) => return values[position(id.0, 0)].as_ref(),
            }
            level -= 1;
        }
    }

    /// Whether the map has a value for the id.
    pub fn contains_key(&self, id: &ServiceId) -> bool {
        self.get(id).is_some()
    }

    /// The entries in the order of the ids.
    pub fn iter(&self) -> impl Iterator<Item = (ServiceId, &V)> {
        let leaf_from = |first: u32| {
            let root = self.root.as_ref().filter(|_| self.fits(ServiceId(first)))?;
            root.leaf_from(self.height, first)
        };
        let next = move |(first, _): &(u32, _)| leaf_from(first.checked_add(1 << BITS)?);
        let leaves = std::iter::successors(leaf_from(0), next);
        let places = leaves.flat_map(|(first, leaf)| (first..=first + ((1 << BITS) - 1)).zip(leaf));
        places.filter_map(|(id, value)| Some((ServiceId(id), value.as_ref()?)))
    }

    /// The ids in their order.
    pub fn keys(&self) -> impl Iterator<Item = ServiceId> {
        self.iter().map(|(id, _)| id)
    }

    /// The values in the order of the ids.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<V: Clone> IdMap<V> {
    /// The value of the id. A node that readers share is copied.
    pub fn get_mut(&mut self, id: &ServiceId) -> Option<&mut V> {
        if self.contains_key(id) { self.place(*id).as_mut() } else { None }
    }

    /// Sets the value of the id; returns the previous one.
    pub fn insert(&mut self, id: ServiceId, value: V) -> Option<V> {
        while !self.fits(id) {
            if let Some(root) = self.root.take() {
                let mut children = array::from_fn(|_| None);
                children[0] = Some(root);
                self.root = Some(Arc::new(Node::Branch(children)));
            }
            self.height += 1;
        }
        let before = self.place(id).replace(value);
        self.len += usize::from(before.is_none());
        before
    }

    /// The value's position in the tree, which must be high enough.
    fn place(&mut self, id: ServiceId) -> &mut Option<V> {
        let (mut place, mut level) = (&mut self.root, self.height);
        loop {
            let node = place.get_or_insert_with(|| Arc::new(Node::empty(level)));
            match Arc::make_mut(node) {
                Node::Branch(children) => place = &mut children[position(id.0, level)],
                Node::Leaf(values) => return &mut values[position(id.0, 0)],
            }
            level -= 1;
        }
    }

    /// Removes the entry; returns its value. Nothing is copied if there is no such entry.
    pub fn remove(&mut self, id: &ServiceId) -> Option<V> {
        if !self.contains_key(id) {
            return None;
        }
        self.len -= 1;
        take(&mut self.root, *id, self.height)
    }
}

/// Takes the value from the tree in `place`, and removes the nodes that become empty.
fn take<V: Clone>(place: &mut Option<Arc<Node<V>>>, id: ServiceId, level: u32) -> Option<V> {
    let (value, is_empty) = match Arc::make_mut(place.as_mut()?) {
        Node::Branch(children) => {
            let value = take(&mut children[position(id.0, level)], id, level - 1);
            (value, children.iter().all(Option::is_none))
        }
        Node::Leaf(values) => (values[position(id.0, 0)].take(), values.iter().all(Option::is_none)),
    };
    if is_empty {
        *place = None;
    }
    value
}

/// A part of a tree that may be less high than the one it is compared with.
struct Part<'a, V> {
    node: Option<&'a Arc<Node<V>>>,
    height: u32,
}

impl<V> Clone for Part<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Part<'_, V> {}

impl<'a, V> Part<'a, V> {
    /// The part at this position of a node of this level.
    fn child(self, level: u32, at: usize) -> Self {
        if level > self.height {
            return Self { node: self.node.filter(|_| at == 0), ..self };
        }
        let node = self.node.and_then(|node| match &**node {
            Node::Branch(children) => children[at].as_ref(),
            Node::Leaf(_) => None,
        });
        Self { node, height: self.height.saturating_sub(1) }
    }

    fn value(self, at: usize) -> Option<&'a V> {
        match &**self.node? {
            Node::Leaf(values) => values[at].as_ref(),
            Node::Branch(_) => None,
        }
    }
}

impl<V: PartialEq> IdMap<V> {
    /// The ids with a value that only one of the maps has, or that differs. The cost is proportional to the parts that
    /// the maps do not share.
    pub fn differences(&self, other: &Self) -> Vec<ServiceId> {
        let parts = [self, other].map(|map| Part { node: map.root.as_ref(), height: map.height });
        let mut found = Vec::new();
        find_differences(parts, self.height.max(other.height), 0, &mut found);
        found
    }
}

fn find_differences<V: PartialEq>(parts: [Part<'_, V>; 2], level: u32, first: u32, found: &mut Vec<ServiceId>) {
    match parts.map(|part| part.node) {
        [None, None] => return,
        [Some(a), Some(b)] if Arc::ptr_eq(a, b) => return,
        _ => {}
    }
    for (at, number) in (0..WIDTH).zip(0..) {
        let first = first + (number << (BITS * level));
        if level > 0 {
            find_differences(parts.map(|part| part.child(level, at)), level - 1, first, found);
        } else if parts[0].value(at) != parts[1].value(at) {
            found.push(ServiceId(first));
        }
    }
}

impl<V: PartialEq> PartialEq for IdMap<V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.differences(other).is_empty()
    }
}

impl<V: Eq> Eq for IdMap<V> {}

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: fmt::Debug> fmt::Debug for IdMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<V: Clone> FromIterator<(ServiceId, V)> for IdMap<V> {
    fn from_iter<I: IntoIterator<Item = (ServiceId, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        entries.into_iter().for_each(|(id, value)| drop(map.insert(id, value)));
        map
    }
}

impl<V> Index<&ServiceId> for IdMap<V> {
    type Output = V;

    fn index(&self, id: &ServiceId) -> &V {
        self.get(id).expect("invariant: the map has the id")
    }
}

#[cfg(test)]
#[path = "tests/id_map.rs"]
mod tests;
