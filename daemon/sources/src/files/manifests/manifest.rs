//! One object of a file, of any kind, decoded as a stream. The fields of Services, EndpointSlices and lists are kept;
//! as soon as an object turns out to be of another kind, nothing of it is.

use std::fmt;

use nodelb_kube::api::objects::{
    Endpoint, EndpointPort, EndpointSlice, List, MAX_ITEMS, Metadata, Service, ServiceSpec, ServiceStatus,
};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

/// The maximum number of objects in one list: more than a cluster of 100,000 services has. The memory in use must not
/// depend on a number in the file.
const MAX_OBJECTS: usize = 250_000;

/// An object with the fields of all kinds that are read.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    pub(super) kind: String,
    pub(super) api_version: String,
    metadata: Metadata,
    spec: ServiceSpec,
    status: ServiceStatus,
    address_type: String,
    endpoints: Vec<Endpoint>,
    ports: Vec<EndpointPort>,
    pub(super) items: Vec<Spanned<Manifest>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Service,
    EndpointSlice,
    /// A `v1` List: each item has its own kind.
    List,
    ServiceList,
    EndpointSliceList,
    Other,
}

impl Kind {
    /// The kind of a list's items that have no kind of their own.
    pub(super) fn of_items(self) -> Option<Self> {
        match self {
            Self::ServiceList => Some(Self::Service),
            Self::EndpointSliceList => Some(Self::EndpointSlice),
            _ => None,
        }
    }
}

impl Manifest {
    pub(super) fn what(&self) -> Kind {
        match (self.api_version.as_str(), self.kind.as_str()) {
            ("v1", "Service") => Kind::Service,
            ("v1", "List") => Kind::List,
            ("v1", "ServiceList") => Kind::ServiceList,
            ("discovery.k8s.io/v1", "EndpointSlice") => Kind::EndpointSlice,
            ("discovery.k8s.io/v1", "EndpointSliceList") => Kind::EndpointSliceList,
            _ => Kind::Other,
        }
    }

    /// Whether the object is already known to be of a kind that is not read. Kind and version may come after other
    /// fields, and are empty until then; an item of a list may lack them.
    fn is_other(&self) -> bool {
        let known_kinds = ["", "Service", "EndpointSlice", "List", "ServiceList", "EndpointSliceList"];
        let known_versions = ["", "v1", "discovery.k8s.io/v1"];
        !known_kinds.contains(&self.kind.as_str()) || !known_versions.contains(&self.api_version.as_str())
    }

    pub(super) fn into_service(self) -> Service {
        Service { metadata: self.metadata, spec: self.spec, status: self.status }
    }

    pub(super) fn into_slice(self) -> EndpointSlice {
        let Self { metadata, address_type, endpoints, ports, .. } = self;
        EndpointSlice { metadata, address_type, endpoints, ports }
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Field {
    Kind,
    ApiVersion,
    Metadata,
    Spec,
    Status,
    AddressType,
    Endpoints,
    Ports,
    Items,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Manifest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ManifestVisitor)
    }
}

struct ManifestVisitor;

impl<'de> Visitor<'de> for ManifestVisitor {
    type Value = Manifest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Manifest, A::Error> {
        let mut object = Manifest::default();
        while let Some(field) = map.next_key()? {
            match field {
                Field::Kind => object.kind = or_default(&mut map)?,
                Field::ApiVersion => object.api_version = or_default(&mut map)?,
                _ if object.is_other() => skip(&mut map)?,
                Field::Metadata => object.metadata = or_default(&mut map)?,
                Field::Spec => object.spec = or_default(&mut map)?,
                Field::Status => object.status = or_default(&mut map)?,
                Field::AddressType => object.address_type = or_default(&mut map)?,
                Field::Endpoints => object.endpoints = or_default::<List<_, MAX_ITEMS>, _>(&mut map)?.0,
                Field::Ports => object.ports = or_default::<List<_, MAX_ITEMS>, _>(&mut map)?.0,
                Field::Items => object.items = or_default::<List<_, MAX_OBJECTS>, _>(&mut map)?.0,
                Field::Other => skip(&mut map)?,
            }
        }
        Ok(object)
    }
}

/// The next value; `null` counts as absent.
fn or_default<'de, T, A>(map: &mut A) -> Result<T, A::Error>
where
    T: Deserialize<'de> + Default,
    A: MapAccess<'de>,
{
    Ok(map.next_value::<Option<T>>()?.unwrap_or_default())
}

fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(|_skipped| ())
}
