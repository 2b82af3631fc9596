//! Endpoints and EndpointSlices: the lists of backends. nodelb reads EndpointSlices; older clients read Endpoints.

use super::{Cause, Entry};
use crate::diagnose::finding::Severity;

const EXISTS: Cause = Cause {
    word: "already exists",
    means: "somebody else has made an object of this name",
    remedy: "find out who (its managedFields), delete it, and have the controller make its own",
};

const ETCD_SLOW: Cause = Cause {
    word: "request timed out",
    means: "etcd is too slow or away",
    remedy: "look at etcd: its health, its disks, the way from the apiserver to it",
};

const ETCD_FULL: Cause = Cause {
    word: "database space exceeded",
    means: "etcd is full and takes no more writes",
    remedy: "compact and defragment etcd, raise its quota, disarm the alarm",
};

const UNAUTHORIZED: Cause = Cause {
    word: "Unauthorized",
    means: "the controller is not known to the apiserver",
    remedy: "see the credentials of kube-controller-manager",
};

const FORBIDDEN: Cause = Cause {
    word: "forbidden",
    means: "the controller may not do this, or the namespace is being deleted",
    remedy: "see the ClusterRole of system:controller:endpointslice-controller (or endpoint-controller), quotas and the \
             namespace's state",
};

const REFUSED: Cause = Cause {
    word: "connection refused",
    means: "the controller does not reach an apiserver",
    remedy: "see whether the apiservers run, and the way from kube-controller-manager to them",
};

const CONFLICT: Cause = Cause {
    word: "the object has been modified",
    means: "two writers changed it at once; the controller tries again by itself",
    remedy: "nothing, if it stays with a few; else find the other writer in the object's managedFields",
};

const TOO_LARGE: Cause = Cause {
    word: "request is too large",
    means: "the list of endpoints is longer than etcd takes (1.5 MB)",
    remedy: "use EndpointSlices, which are split (Kubernetes 1.21 and later do); clients of Endpoints see the first thousand",
};

const RATE: Cause = Cause {
    word: "rate limit",
    means: "the controller is held back because it asks too often",
    remedy: "pods come and go too fast, or the limits of kube-controller-manager (--kube-api-qps) are too low",
};

const NOT_FOUND: Cause = Cause {
    word: "not found",
    means: "it has been deleted by hand already",
    remedy: "nothing: the controller gives up by itself",
};

const CREATE: &[Cause] = &[EXISTS, ETCD_SLOW, ETCD_FULL, UNAUTHORIZED, FORBIDDEN, REFUSED];
const UPDATE: &[Cause] = &[CONFLICT, TOO_LARGE, RATE, ETCD_SLOW, ETCD_FULL, UNAUTHORIZED, FORBIDDEN, REFUSED];
const DELETE: &[Cause] = &[NOT_FOUND, UNAUTHORIZED, FORBIDDEN, REFUSED];

const LOG: &str = "read the message and the log of kube-controller-manager; see whether apiserver and etcd are well";
const FINALIZERS: &str = "see whether it is still there, and whether finalizers keep it";

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        reason: "FailedToCreateEndpoint",
        kind: "Warning",
        source: "endpoint-controller",
        severity: Severity::Warning,
        meaning: "the Endpoints of the service could not be made: who reads Endpoints finds no backends (nodelb reads slices)",
        causes: CREATE,
        remedy: LOG,
    },
    Entry {
        reason: "FailedToUpdateEndpoint",
        kind: "Warning",
        source: "endpoint-controller",
        severity: Severity::Warning,
        meaning: "the Endpoints of the service are behind: who reads Endpoints reaches pods that are gone, and misses new ones \
                  (nodelb reads slices)",
        causes: UPDATE,
        remedy: LOG,
    },
    Entry {
        reason: "FailedToDeleteEndpoint",
        kind: "Warning",
        source: "endpoint-controller",
        severity: Severity::Info,
        meaning: "Endpoints of a deleted service are left over; they do no harm",
        causes: DELETE,
        remedy: FINALIZERS,
    },
    Entry {
        reason: "FailedToCreateEndpointSlice",
        kind: "Warning",
        source: "endpointslice-controller",
        severity: Severity::Critical,
        meaning: "an EndpointSlice could not be made: the service misses backends, or has none",
        causes: CREATE,
        remedy: LOG,
    },
    Entry {
        reason: "FailedToUpdateEndpointSlice",
        kind: "Warning",
        source: "endpointslice-controller",
        severity: Severity::Critical,
        meaning: "an EndpointSlice is behind: connections go to pods that are gone or not ready, and new pods get none",
        causes: UPDATE,
        remedy: LOG,
    },
    Entry {
        reason: "FailedToDeleteEndpointSlice",
        kind: "Warning",
        source: "endpointslice-controller",
        severity: Severity::Info,
        meaning: "an EndpointSlice that is not needed any more is left over: while it is there its endpoints count",
        causes: DELETE,
        remedy: FINALIZERS,
    },
];
