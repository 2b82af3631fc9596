//! The supported resources and their properties.

/// One resource.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// API group; empty for core.
    pub group: &'static str,
    /// `v1`
    pub version: &'static str,
    /// As in paths: `services`.
    pub plural: &'static str,
    /// `service`
    pub singular: &'static str,
    /// `Service`
    pub kind: &'static str,
    /// Short names for kubectl.
    pub short: &'static [&'static str],
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether `/status` exists.
    pub status: bool,
    /// Fields that field selectors may use in addition to name and namespace.
    pub selectable: &'static [&'static str],
}

/// The API group of roles.
pub(crate) const RBAC: &str = "rbac.authorization.k8s.io";

/// All supported resources.
pub(crate) static RESOURCES: [Resource; 14] = [
    Resource {
        status: true,
        selectable: &["status.phase"],
        ..core("namespaces", "namespace", "Namespace", &["ns"], false)
    },
    Resource {
        status: true,
        selectable: &["spec.clusterIP", "spec.type"],
        ..core("services", "service", "Service", &["svc"], true)
    },
    core("endpoints", "endpoints", "Endpoints", &["ep"], true),
    Resource { status: true, selectable: &["spec.unschedulable"], ..core("nodes", "node", "Node", &["no"], false) },
    Resource {
        status: true,
        selectable: &["spec.nodeName", "status.phase", "status.podIP"],
        ..core("pods", "pod", "Pod", &["po"], true)
    },
    Resource {
        selectable: &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ],
        ..core("events", "event", "Event", &["ev"], true)
    },
    Resource { group: "discovery.k8s.io", ..core("endpointslices", "endpointslice", "EndpointSlice", &[], true) },
    Resource { group: "networking.k8s.io", ..core("servicecidrs", "servicecidr", "ServiceCIDR", &[], false) },
    // `accounts` implements their effects.
    core("serviceaccounts", "serviceaccount", "ServiceAccount", &["sa"], true),
    Resource { selectable: &["type"], ..core("secrets", "secret", "Secret", &[], true) },
    Resource { group: RBAC, ..core("clusterroles", "clusterrole", "ClusterRole", &[], false) },
    Resource { group: RBAC, ..core("clusterrolebindings", "clusterrolebinding", "ClusterRoleBinding", &[], false) },
    Resource { group: RBAC, ..core("roles", "role", "Role", &[], true) },
    Resource { group: RBAC, ..core("rolebindings", "rolebinding", "RoleBinding", &[], true) },
];

const fn core(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
) -> Resource {
    Resource { group: "", version: "v1", plural, singular, kind, short, namespaced, status: false, selectable: &[] }
}

impl Resource {
    /// Finds a resource by plural or kind.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|resource| resource.plural == name || resource.kind == name)
    }

    /// Finds a resource by the parts of its path.
    pub(crate) fn in_group(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|it| it.group == group && it.version == version && it.plural == plural)
    }

    /// `v1`, `discovery.k8s.io/v1`
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.into() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `services`, `endpointslices.discovery.k8s.io`: the name in messages.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.into() } else { format!("{}.{}", self.plural, self.group) }
    }
}
