//! Decodes the JSON of objects and watch events into [`ListWatchEvent`]s. Pure. An invalid object is skipped, and the
//! list or watch continues.

use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::model::service::{FullName, ServiceName, Source, is_default_kubernetes, is_name_part};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::objects::{self, Envelope, ListMetadata, Metadata};
use super::plain::{self, FromPlain};
use super::translate::{self, ForwardByClass, Reader};
use crate::apiserver::connection::error::LinkError;
use crate::null::null_is_default;
use nodelb_core::text;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// `core/v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `core/v1` Node: only this node's, for its zone, its addresses and whether it is about to be removed.
    Node,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Node];

    /// The kinds that define services. The services are complete only when both have been listed.
    pub const SERVED: [Self; 2] = [Self::Service, Self::EndpointSlice];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
        }
    }

    /// The name of the resource, as in kubectl commands.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::Node => "nodes",
        }
    }

    /// The path for listing and watching the objects of all namespaces.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::Node => "/api/v1/nodes",
        }
    }
}

/// Namespace (`default` for a Node) and name of an object.
pub type Key = FullName;

/// `metadata.uid` as a number, 0 if unknown. It distinguishes successive objects of the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uid(u128);

/// `metadata.resourceVersion` as a number, 0 if it is not a number. Versions of one cluster are comparable, because
/// every apiserver uses etcd's revisions (KEP-5504 guarantees it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// An event of a list or a watch. `O` is the type of the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListWatchEvent<O = Box<Object>> {
    /// A list begins. The following events, up to [`Self::ListDone`], contain all objects.
    ListStart {
        /// Whether the cluster may have been restored from a backup, so that earlier versions have no meaning.
        is_rewound: bool,
    },
    /// The object exists in this version.
    Upsert(O),
    /// The object was deleted; its last version.
    Delete(O),
    /// An object cannot be decoded. The previous state of the object remains.
    Skipped {
        /// The key of the object, if it could be decoded.
        key: Option<Key>,
        reason: String,
    },
    /// The list is complete, at this version.
    ListDone(Version),
    /// There are no other changes up to this version.
    Bookmark(Version),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub key: Key,
    pub uid: Uid,
    pub version: Version,
    /// The change that makes the object known to the core; `None` if nodelb ignores the object, as kube-proxy does, or
    /// if the object was deleted.
    pub change: Option<Change>,
    /// The ignored parts of the object.
    pub notices: Vec<String>,
    /// The service of an EndpointSlice that nodelb ignores.
    pub left_out_of: Option<ServiceName>,
    /// The UID as text, if this is Service `default/kubernetes`. It identifies the cluster.
    pub cluster: Option<String>,
}

pub trait Decode {
    type Object;

    fn item(&mut self, bytes: &[u8]) -> ListWatchEvent<Self::Object>;

    /// Decodes an event of a watch.
    ///
    /// # Errors
    /// The server ends the watch with an error, or this is not an event. In the latter case the content is lost, and
    /// only another list can replace it.
    fn event(&mut self, bytes: &[u8]) -> Result<ListWatchEvent<Self::Object>, LinkError>;
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bare {
    #[serde(deserialize_with = "null_is_default")]
    metadata: Metadata,
}

/// `meta/v1` Status, with the fields that nodelb uses.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "null_is_default")]
    code: u16,
    #[serde(deserialize_with = "null_is_default")]
    reason: String,
    #[serde(deserialize_with = "null_is_default")]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BareList {
    #[serde(deserialize_with = "null_is_default")]
    kind: String,
    #[serde(deserialize_with = "null_is_default")]
    metadata: ListMetadata,
}

#[derive(Debug)]
pub struct Decoder {
    kind: Kind,
    reader: Reader,
}

impl Decode for Decoder {
    type Object = Box<Object>;

    fn item(&mut self, bytes: &[u8]) -> ListWatchEvent {
        match self.kind {
            Kind::Service => self.item_of::<objects::Service>(bytes),
            Kind::EndpointSlice => self.item_of::<objects::EndpointSlice>(bytes),
            Kind::Node => self.item_of::<objects::Node>(bytes),
        }
    }

    fn event(&mut self, bytes: &[u8]) -> Result<ListWatchEvent, LinkError> {
        match self.kind {
            Kind::Service => self.event_of::<objects::Service>(bytes),
            Kind::EndpointSlice => self.event_of::<objects::EndpointSlice>(bytes),
            Kind::Node => self.event_of::<objects::Node>(bytes),
        }
    }
}

impl Decoder {
    pub fn new(kind: Kind) -> Self {
        Self { kind, reader: Reader::new(Source::Kubernetes, Arc::default()) }
    }

    pub fn with_forward(mut self, forward: &Arc<ForwardByClass>) -> Self {
        self.reader.forward = Arc::clone(forward);
        self
    }

    fn event_of<W: Watched>(&mut self, bytes: &[u8]) -> Result<ListWatchEvent, LinkError> {
        // The most frequent events are decoded in one pass.
        if let Ok(Envelope { kind, object }) = parse::<Envelope<'_, W>>(bytes) {
            match &*kind {
                "ADDED" | "MODIFIED" => return Ok(self.upsert(&object)),
                "DELETED" => return Ok(delete(object.metadata())),
                _ => {}
            }
        }
        let Envelope { kind, object }: Envelope<'_, &RawValue> =
            serde_json::from_slice(bytes).map_err(|error| invalid(&format!("not a watch event: {error}")))?;
        let object = object.get().as_bytes();
        match &*kind {
            "ADDED" | "MODIFIED" => Ok(self.item_of::<W>(object)),
            "DELETED" => Ok(match serde_json::from_slice::<Bare>(object) {
                Ok(bare) => delete(&bare.metadata),
                Err(error) => skipped(object, &error),
            }),
            kind => event_without_object(kind, object),
        }
    }

    fn item_of<W: Watched>(&mut self, bytes: &[u8]) -> ListWatchEvent {
        match parse::<W>(bytes) {
            Ok(object) => self.upsert(&object),
            Err(error) => skipped(bytes, &error),
        }
    }

    fn upsert<W: Watched>(&mut self, object: &W) -> ListWatchEvent {
        let metadata = object.metadata();
        let mut decoded = match named(metadata) {
            Ok(decoded) => decoded,
            Err(reason) => return ListWatchEvent::Skipped { key: None, reason },
        };
        let Key { namespace, name } = &decoded.key;
        if self.kind == Kind::Service && is_default_kubernetes(namespace, name) && !metadata.uid.is_empty() {
            decoded.cluster = Some(text::name(&metadata.uid).into_owned());
        }
        self.reader.object = format!("{} {namespace}/{name}", self.kind.name()).into();
        let (change, notices) = object.change(&mut self.reader);
        decoded.notices = notices.iter().map(|notice| text::sentence(notice).into_owned()).collect();
        match &change {
            Some(Change::UpsertService(service)) => decoded.key.clone_from(&service.name),
            Some(Change::UpsertSlice(slice)) => decoded.key.clone_from(&slice.name),
            None if self.kind == Kind::EndpointSlice => {
                let service = metadata.labels.service_name.as_deref().filter(|name| is_name_part(name));
                decoded.left_out_of = service.map(|name| ServiceName::new(&decoded.key.namespace, name));
            }
            _ => {}
        }
        decoded.change = change;
        ListWatchEvent::Upsert(decoded)
    }
}

/// Decodes JSON. To check once that all of it is text costs less than to check each string; strings that are ignored need
/// not be text.
fn parse<'a, T: FromPlain<'a>>(bytes: &'a [u8]) -> serde_json::Result<T> {
    match std::str::from_utf8(bytes) {
        Ok(text) => plain::decode(text).map_or_else(|| serde_json::from_str(text), Ok),
        Err(_not_text) => serde_json::from_slice(bytes),
    }
}

/// Decodes a watch event that is not about an object: a bookmark or an error.
pub fn event_without_object<O>(kind: &str, object: &[u8]) -> Result<ListWatchEvent<O>, LinkError> {
    match kind {
        "BOOKMARK" => {
            let Bare { metadata } =
                serde_json::from_slice(object).map_err(|error| invalid(&format!("not a bookmark: {error}")))?;
            let version = Version::parse(&metadata.resource_version);
            let is_end_of_list = metadata.annotations.initial_events_end.as_deref() == Some("true");
            Ok(if is_end_of_list { ListWatchEvent::ListDone(version) } else { ListWatchEvent::Bookmark(version) })
        }
        "ERROR" => {
            let Status { code, reason, message } = serde_json::from_slice(object).unwrap_or_default();
            let message = text::sentence(format!("{reason} {message}").trim()).into_owned();
            Err(match code {
                0 => LinkError::Status { code: 500, message },
                410 => LinkError::Gone(message),
                code => LinkError::Status { code, message },
            })
        }
        other => Err(invalid(&format!("a watch event of unknown type `{}`", other.escape_debug()))),
    }
}

pub fn list_metadata(bytes: &[u8]) -> Result<ListMetadata, LinkError> {
    let list: BareList = serde_json::from_slice(bytes).map_err(|error| invalid(&format!("not a list: {error}")))?;
    if list.kind.ends_with("List") {
        Ok(list.metadata)
    } else {
        Err(invalid(&format!("not a list but a `{}`", list.kind.escape_debug())))
    }
}

pub fn invalid(reason: &str) -> LinkError {
    LinkError::Broken(format!("invalid response: {}", text::sentence(reason)))
}

fn delete(metadata: &Metadata) -> ListWatchEvent {
    match named(metadata) {
        Ok(object) => ListWatchEvent::Delete(object),
        Err(reason) => ListWatchEvent::Skipped { key: None, reason },
    }
}

/// The event for an object that cannot be decoded. Its name may still be readable.
fn skipped(bytes: &[u8], error: &serde_json::Error) -> ListWatchEvent {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Named {
        metadata: Name,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Name {
        namespace: String,
        name: String,
    }
    let Named { metadata: Name { namespace, name } } = serde_json::from_slice(bytes).unwrap_or_default();
    let key = key(&namespace, &name).ok();
    ListWatchEvent::Skipped { key, reason: text::sentence(&error.to_string()).into_owned() }
}

fn key(namespace: &str, name: &str) -> Result<Key, String> {
    if is_name_part(namespace) && is_name_part(name) {
        return Ok(Key::new(namespace, name));
    }
    let shown: String = format!("{namespace}/{name}").chars().take(80).collect();
    Err(format!("`{}` is not a Kubernetes name", shown.escape_debug()))
}

/// The object with this metadata, without a change.
fn named(metadata: &Metadata) -> Result<Box<Object>, String> {
    Ok(Box::new(Object {
        key: key(translate::namespace(metadata), &metadata.name)?,
        uid: Uid::parse(&metadata.uid),
        version: Version::parse(&metadata.resource_version),
        change: None,
        notices: Vec::new(),
        left_out_of: None,
        cluster: None,
    }))
}

impl Uid {
    fn parse(text: &str) -> Self {
        Self(hexadecimal(text).unwrap_or_else(|| {
            // Not a UUID. A hash of the text; different texts very probably yield different numbers.
            text.bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(0x1b3 << 88 | 0x13b))
        }))
    }

    /// Whether both are known and differ.
    pub fn is_other(self, uid: Self) -> bool {
        self.0 != 0 && uid.0 != 0 && self != uid
    }
}

/// The number that the digits of a UUID are; `None` if the text is not one.
fn hexadecimal(text: &str) -> Option<u128> {
    let mut number = 0_u128;
    for byte in text.bytes().filter(|byte| *byte != b'-') {
        let digit = char::from(byte).to_digit(16)?;
        if number >> 124 != 0 {
            return None;
        }
        number = number << 4 | u128::from(digit);
    }
    Some(number)
}

impl Version {
    pub fn parse(text: &str) -> Self {
        Self(text.parse().unwrap_or(0))
    }
}

/// An object in the form that the server sends.
trait Watched: for<'a> FromPlain<'a> {
    fn metadata(&self) -> &Metadata;

    /// The change that makes the object known, and the ignored parts of the object.
    fn change(&self, reader: &mut Reader) -> (Option<Change>, Vec<String>);
}

impl Watched for objects::Service {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn change(&self, reader: &mut Reader) -> (Option<Change>, Vec<String>) {
        let (service, notices) = translate::service(self, reader);
        (service.map(Change::UpsertService), notices)
    }
}

impl Watched for objects::EndpointSlice {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn change(&self, reader: &mut Reader) -> (Option<Change>, Vec<String>) {
        let (slice, notices) = translate::slice(self, reader);
        (slice.map(Change::UpsertSlice), notices)
    }
}

impl Watched for objects::Node {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn change(&self, _: &mut Reader) -> (Option<Change>, Vec<String>) {
        (Some(Change::NodeObject(Some(translate::node(self)))), Vec::new())
    }
}

#[cfg(test)]
#[path = "tests/decode.rs"]
mod tests;
