//! The only way in: what a source or the node can tell the table. Serialisable, so that it can be logged, recorded and
//! replayed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::addr::{Addr, L4Addr};
use crate::model::node::{NodeFacts, NodeObject};
use crate::model::service::{Service, ServiceName, Slice, SliceName, Source};
use crate::state::remembered::Remembered;

/// One fact from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The service is as given, whatever it was before.
    UpsertService(Service),
    /// The source no longer has the service.
    RemoveService(ServiceName, Source),
    /// The slice is as given, also if it belonged to another service before.
    UpsertSlice(Slice),
    /// The source no longer has the slice.
    RemoveSlice(SliceName, Source),
    /// What is known about this node.
    Node(NodeFacts),
    /// What Kubernetes says about this node; `None` where it has no such Node (any more). Not having heard is neither.
    NodeObject(Option<NodeObject>),
    /// The node has another name than before, so that what Kubernetes said about it was about another Node: nothing is
    /// known, as at the start.
    NodeObjectUnknown,
    /// What keeps load balancers from being answered, `None` where nothing does: at the health-check port of the service,
    /// or, without a name, at the node's own health addresses.
    EntryError(Option<ServiceName>, Option<Arc<str>>),
    /// What nodelb's own checks found: the backends of the service that are not to be chosen, each with its last error.
    /// Whatever was said about the service before is void.
    Quarantine(ServiceName, BTreeMap<(Addr, u16), Arc<str>>),
    /// The NodePorts that a process of this node has bound, under the unspecified address of their family, each with who
    /// that is and what it means. Whatever was said about NodePorts before is void.
    Bound(BTreeMap<L4Addr, Arc<str>>),
    /// Every address at which an apiserver is known to listen: configured, learned or remembered. The services that lead
    /// to one of them are never emptied.
    Apiservers(BTreeSet<(Addr, u16)>),
    /// What [`crate::snapshot::Snapshot::remembered`] said before a restart: what protected services go on with where the
    /// kernel knows nothing and the source says that they are empty. For the start, before the sources tell anything.
    Remember(Vec<Remembered>),
    /// The source has told everything it had at the start, except what it names. Until every source is synced, and for
    /// as long as one is incomplete, nothing is pruned from the kernel.
    Synced {
        /// Who is synced.
        source: Source,
        /// What could not be read, so that what the kernel still holds may belong to it; `None` if nothing is missing.
        incomplete: Option<Arc<str>>,
    },
}
