//! The only input of the table: what a source or the node can report. Changes are serialisable, so that they can be
//! logged, recorded and replayed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::history::Event;
use crate::model::addr::{Addr, L4Addr};
use crate::model::drain::{DrainCause, Drains};
use crate::model::named::{NameAnswer, Named, Question};
use crate::model::node::{NodeFacts, NodeObject};
use crate::model::service::{Service, ServiceName, Slice, SliceName, Source};
use crate::model::uplink::{Translation, Uplink};
use crate::state::remembered::Remembered;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The service has exactly this content, which replaces any earlier one.
    UpsertService(Service),
    /// The source no longer has the service.
    RemoveService(ServiceName, Source),
    /// The source has the service, or may have it, and the operator's selection leaves it out, which the text says.
    Unselect(ServiceName, Source, Arc<str>),
    /// The slice has exactly this content, even if it belonged to another service before.
    UpsertSlice(Slice),
    /// The file source describes these backends by a name. They become a slice of it, and [`Self::RemoveSlice`] removes them.
    UpsertNamed(Named),
    /// What is known about the backends with a name; `None` when nothing is known any more. This replaces anything earlier.
    Answer(Question, Option<NameAnswer>),
    /// The source no longer has the slice.
    RemoveSlice(SliceName, Source),
    Node(NodeFacts),
    /// The Node object that Kubernetes has for this node; `None` if there is no such Node, or it was deleted. "Not yet
    /// reported" is expressed by neither value.
    NodeObject(Option<NodeObject>),
    /// The node has been renamed. What Kubernetes reported was about another Node, so nothing is known about this one,
    /// as at the start.
    NodeObjectUnknown,
    /// The reason why load balancers get no answer; `None` if there is none. With a service name it concerns the
    /// health-check port of that service, without one the node's own health addresses.
    HealthCheckPortError(Option<ServiceName>, Option<Arc<str>>),
    /// The backends of the service that have failed nodelb's own health checks, each with its last error. It replaces any
    /// earlier result for the service.
    Quarantine(ServiceName, BTreeMap<(Addr, u16), Arc<str>>),
    /// The backends of the service that have passed nodelb's own health checks. It replaces any earlier result for the
    /// service. It matters if the others are unhealthy until they are checked.
    Passed(ServiceName, BTreeSet<(Addr, u16)>),
    /// The backends of the service that the operator drains, and why this changes; without a reason, it is not news. This
    /// replaces any earlier drains of the service.
    Drains(ServiceName, Drains, Option<DrainCause>),
    /// Whether the drains of the previous run could not be read yet. After true, which comes before any source reports,
    /// no source brings a backend into use that the maps do not have; before false, no drain is known.
    DrainsUnread(bool),
    /// The NodePorts that a process of this node has bound, under the unspecified address of their family. The text
    /// names the process and the consequence. This replaces any earlier list.
    Bound(BTreeMap<L4Addr, Arc<str>>),
    /// The node's uplinks. This replaces any earlier list.
    Uplinks(Vec<Uplink>),
    /// What nodelb does now with new connections from outside the node, if the configuration lets it translate them.
    Translation(Translation),
    /// Something that an observer of the node has seen or done, for the history. The table ignores it.
    Happened(Box<Event>),
    /// Every address where an apiserver is known to listen: configured, learned or remembered. Services that reach one
    /// of them are never emptied.
    Apiservers(BTreeSet<(Addr, u16)>),
    /// What [`crate::snapshot::Snapshot::remembered`] returned before a restart. Protected services use these backends
    /// if the maps contain none and the source reports none. Sent at the start, before any source reports, unless the disk is
    /// late.
    Remember(Vec<Remembered>),
    /// The changes before this one contain everything that the source had stored in the previous run.
    Recalled(Source),
    /// The namespaces that Kubernetes does not let nodelb read. If there are any, they are all that is missing if its
    /// [`Self::Synced`] is incomplete: nothing else waits for them.
    Unread(BTreeSet<Arc<str>>),
    /// The source has reported everything it had at the start, except what `incomplete` names. Until every source is
    /// synced and none is incomplete, nothing is pruned from the maps.
    Synced {
        source: Source,
        /// What the source could not read, so that entries in the maps may belong to it; `None` if nothing is missing.
        incomplete: Option<Arc<str>>,
    },
}

impl Change {
    /// Whether the change is about a service or a slice of this source.
    pub fn is_object_of(&self, source: Source) -> bool {
        match self {
            Self::UpsertService(service) => service.source == source,
            Self::UpsertSlice(slice) => slice.source == source,
            Self::RemoveService(_, of) | Self::Unselect(_, of, _) | Self::RemoveSlice(_, of) => *of == source,
            _ => false,
        }
    }
}
