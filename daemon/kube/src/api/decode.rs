//! Decodes the bytes of one object into a message for the store. Pure. Invalid objects are skipped and never stop a watch.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use nodelb_core::model::node::NodeObject;
use nodelb_core::model::service::{Origin, Service, Slice, Source, is_name_part};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::objects::{self, ListMetadata, Metadata};
use super::translate::{self, Reader, Translation};
use crate::null::null_is_default;

/// The kinds of objects that nodelb watches.
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
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Node];

    /// The kinds that define services. The services are complete only when both have been listed.
    pub const SERVED: [Self; 2] = [Self::Service, Self::EndpointSlice];

    /// The name of the kind, as in `kind:`.
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `metadata.namespace`
    pub namespace: Arc<str>,
    /// `metadata.name`
    pub name: Arc<str>,
}

impl Key {
    /// The key of a Node, which has no namespace.
    pub fn of_node(name: &str) -> Self {
        Self { namespace: translate::namespace(&Metadata::default()).into(), name: name.into() }
    }
}

/// An object, translated into the core's model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A Service.
    Service(Service),
    /// An EndpointSlice.
    Slice(Slice),
    /// A Node.
    Node(NodeObject),
}

/// `metadata.uid` as a number, 0 if unknown. It distinguishes successive objects of the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uid(u128);

/// `metadata.resourceVersion` as a number, 0 if it is not a number. Versions of one cluster are comparable, because
/// every apiserver uses etcd's revisions (KEP-5504 guarantees it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A message for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectEvent {
    /// A list begins. The following messages, up to [`ObjectEvent::Listed`], contain all objects.
    ListBegins {
        /// Whether the cluster may have been restored from a backup, so that earlier versions have no meaning.
        is_rewound: bool,
    },
    /// The object exists in this version.
    Upsert(Box<Item>),
    /// The object was deleted.
    Delete(Identity),
    /// An invalid object or event. The previous state of the object remains.
    Skipped {
        /// The key of the object, if it could be decoded.
        key: Option<Key>,
        /// The reason.
        reason: String,
    },
    /// The list is complete, at this version.
    Listed(Version),
}

/// An object of a list or a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Key, UID and version.
    pub identity: Identity,
    /// The translated object; `None` if nodelb ignores it, as kube-proxy does.
    pub object: Option<Object>,
    /// The ignored parts of the object.
    pub notices: Vec<String>,
}

/// Identifies one version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Namespace and name.
    pub key: Key,
    /// The UID.
    pub uid: Uid,
    /// The version.
    pub version: Version,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message for the store, with the version of the object (0 if it was skipped).
    ObjectEvent(ObjectEvent, Version),
    /// There are no other changes up to this version.
    Bookmark {
        /// The version.
        version: Version,
        /// Whether all objects that existed when the stream began have been sent.
        is_end_of_list: bool,
    },
    /// The server ends the watch with an error.
    Error {
        /// The HTTP status; 410 means that the requested version is too old.
        code: u16,
        /// The message of the server.
        message: String,
    },
}

impl From<(ObjectEvent, Version)> for Event {
    fn from((heard, version): (ObjectEvent, Version)) -> Self {
        Self::ObjectEvent(heard, version)
    }
}

#[derive(Deserialize)]
struct Envelope<'a, O> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    object: O,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bare {
    #[serde(deserialize_with = "null_is_default")]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BookmarkObject {
    #[serde(deserialize_with = "null_is_default")]
    metadata: BookmarkMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BookmarkMetadata {
    #[serde(deserialize_with = "null_is_default")]
    resource_version: String,
    #[serde(deserialize_with = "null_is_default")]
    annotations: BookmarkAnnotations,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<String>,
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

/// The metadata of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shell {
    /// The version of the list.
    pub version: Version,
    /// The `continue` token for the next page; empty on the last page.
    pub next: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ShellObject {
    #[serde(deserialize_with = "null_is_default")]
    kind: String,
    #[serde(deserialize_with = "null_is_default")]
    metadata: ListMetadata,
}

/// A decoder for one kind of objects. It shares strings that thousands of objects have in common.
#[derive(Debug)]
pub struct Decoder {
    kind: Kind,
    writers: HashSet<Arc<str>>,
    /// The uid of Service `default/kubernetes`, until [`Self::take_cluster`] takes it.
    cluster: Option<String>,
}

/// The maximum number of shared writer names; a cluster has only a few.
const MAX_WRITERS: usize = 1000;

impl Decoder {
    /// A decoder for this kind.
    pub fn new(kind: Kind) -> Self {
        Self { kind, writers: HashSet::new(), cluster: None }
    }

    /// The identity of the cluster: the uid of Service `default/kubernetes`, if it was decoded since the last call.
    pub fn take_cluster(&mut self) -> Option<String> {
        self.cluster.take()
    }

    /// Decodes an event of a watch.
    ///
    /// # Errors
    /// It is not an event. Its content is lost, and only another list can replace it.
    pub fn event(&mut self, bytes: &[u8]) -> Result<Event, String> {
        match self.kind {
            Kind::Service => self.event_of::<objects::Service>(bytes),
            Kind::EndpointSlice => self.event_of::<objects::EndpointSlice>(bytes),
            Kind::Node => self.event_of::<objects::Node>(bytes),
        }
    }

    fn event_of<O: Watched>(&mut self, bytes: &[u8]) -> Result<Event, String> {
        // The most frequent events are decoded in one pass.
        if let Ok(Envelope { kind, object }) = serde_json::from_slice::<Envelope<'_, O>>(bytes) {
            match &*kind {
                "ADDED" | "MODIFIED" => return Ok(object.heard(self).into()),
                "DELETED" => return Ok(named(object.metadata(), ObjectEvent::Delete).into()),
                _ => {}
            }
        }
        let Envelope { kind, object }: Envelope<'_, &RawValue> =
            serde_json::from_slice(bytes).map_err(|error| format!("not an event: {error}"))?;
        let object = object.get().as_bytes();
        match &*kind {
            "ADDED" | "MODIFIED" => Ok(self.item_of::<O>(object).into()),
            "DELETED" => match serde_json::from_slice::<Bare>(object) {
                Ok(bare) => Ok(named(&bare.metadata, ObjectEvent::Delete).into()),
                Err(error) => Ok(Event::ObjectEvent(skipped(object, &error.to_string()), Version::default())),
            },
            "BOOKMARK" => {
                let bookmark: BookmarkObject =
                    serde_json::from_slice(object).map_err(|error| format!("not a bookmark: {error}"))?;
                let is_end_of_list = bookmark.metadata.annotations.initial_events_end.as_deref() == Some("true");
                Ok(Event::Bookmark { version: Version::of(&bookmark.metadata.resource_version), is_end_of_list })
            }
            "ERROR" => {
                let status: Status = serde_json::from_slice(object).unwrap_or_default();
                let code = if status.code == 0 { 500 } else { status.code };
                Ok(Event::Error { code, message: reported(&status) })
            }
            other => Err(format!("an event of unknown type `{}`", other.escape_debug())),
        }
    }

    /// Decodes an object of a list, or of an ADDED or MODIFIED event.
    pub fn item(&mut self, bytes: &[u8]) -> (ObjectEvent, Version) {
        match self.kind {
            Kind::Service => self.item_of::<objects::Service>(bytes),
            Kind::EndpointSlice => self.item_of::<objects::EndpointSlice>(bytes),
            Kind::Node => self.item_of::<objects::Node>(bytes),
        }
    }

    fn item_of<O: Watched>(&mut self, bytes: &[u8]) -> (ObjectEvent, Version) {
        match serde_json::from_slice::<O>(bytes) {
            Ok(object) => object.heard(self),
            Err(error) => (skipped(bytes, &error.to_string()), Version::default()),
        }
    }

    fn translated<O: Watched, M: HasOrigin>(
        &mut self,
        object: &O,
        translate: impl FnOnce(&O, &Reader) -> Translation<M>,
        model: impl FnOnce(M) -> Object,
    ) -> (ObjectEvent, Version) {
        named(object.metadata(), |identity| {
            let Key { namespace, name } = &identity.key;
            let uid = &object.metadata().uid;
            if self.kind == Kind::Service && (&**namespace, &**name) == ("default", "kubernetes") && !uid.is_empty() {
                self.cluster = Some(super::printable::name(uid).into_owned());
            }
            let reader = Reader {
                source: Source::Kubernetes,
                object: format!("{} {namespace}/{name}", self.kind.name()).into(),
            };
            let Translation { value, notices } = translate(object, &reader);
            let notices = notices.iter().map(|notice| super::printable::sentence(notice).into_owned()).collect();
            let value = value.map(|mut value| {
                self.share_writer(value.origin());
                model(value)
            });
            ObjectEvent::Upsert(Box::new(Item { identity, object: value, notices }))
        })
    }

    fn share_writer(&mut self, origin: &mut Origin) {
        if let Some(shared) = self.writers.get(&origin.writer) {
            origin.writer = Arc::clone(shared);
        } else if self.writers.len() < MAX_WRITERS {
            self.writers.insert(Arc::clone(&origin.writer));
        }
    }
}

/// Decodes a list without its items.
///
/// # Errors
/// It is not a list.
pub fn shell(bytes: &[u8]) -> Result<Shell, String> {
    let shell: ShellObject = serde_json::from_slice(bytes).map_err(|error| format!("not a list: {error}"))?;
    if !shell.kind.ends_with("List") {
        return Err(format!("not a list but a `{}`", shell.kind.escape_debug()));
    }
    Ok(Shell { version: Version::of(&shell.metadata.resource_version), next: shell.metadata.next })
}

/// The message for the store about an object with this metadata, and the object's version.
fn named(metadata: &Metadata, reported: impl FnOnce(Identity) -> ObjectEvent) -> (ObjectEvent, Version) {
    match identity(metadata) {
        Ok(identity) => {
            let version = identity.version;
            (reported(identity), version)
        }
        Err(reason) => (ObjectEvent::Skipped { key: None, reason }, Version::default()),
    }
}

fn reported(Status { reason, message, .. }: &Status) -> String {
    super::printable::sentence(format!("{reason} {message}").trim()).into_owned()
}

/// The message for an object that cannot be decoded. Its name may still be readable.
fn skipped(bytes: &[u8], error: &str) -> ObjectEvent {
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
    let named: Named = serde_json::from_slice(bytes).unwrap_or_default();
    let key = key(&named.metadata.namespace, &named.metadata.name).ok();
    ObjectEvent::Skipped { key, reason: super::printable::sentence(error).into_owned() }
}

fn identity(metadata: &Metadata) -> Result<Identity, String> {
    let key = key(translate::namespace(metadata), &metadata.name)?;
    Ok(Identity { key, uid: Uid::of(&metadata.uid), version: Version::of(&metadata.resource_version) })
}

fn key(namespace: &str, name: &str) -> Result<Key, String> {
    if is_name_part(namespace) && is_name_part(name) {
        return Ok(Key { namespace: namespace.into(), name: name.into() });
    }
    let shown: String = format!("{namespace}/{name}").chars().take(80).collect();
    Err(format!("`{}` is not a Kubernetes name", shown.escape_debug()))
}

impl Uid {
    fn of(text: &str) -> Self {
        let digits = text.bytes().filter(|byte| *byte != b'-');
        let hex = digits
            .map(|byte| char::from(byte).to_digit(16))
            .try_fold(0_u128, |number, digit| Some(number.checked_mul(16)? + u128::from(digit?)));
        Self(hex.unwrap_or_else(|| {
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

impl Version {
    /// Parses a `resourceVersion`.
    pub fn of(text: &str) -> Self {
        Self(text.parse().unwrap_or(0))
    }
}

trait Watched: DeserializeOwned {
    fn metadata(&self) -> &Metadata;

    /// The message for the store about this object.
    fn heard(&self, decoder: &mut Decoder) -> (ObjectEvent, Version);
}

impl Watched for objects::Service {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn heard(&self, decoder: &mut Decoder) -> (ObjectEvent, Version) {
        decoder.translated(self, translate::service, Object::Service)
    }
}

impl Watched for objects::EndpointSlice {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn heard(&self, decoder: &mut Decoder) -> (ObjectEvent, Version) {
        decoder.translated(self, translate::slice, Object::Slice)
    }
}

impl Watched for objects::Node {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn heard(&self, _: &mut Decoder) -> (ObjectEvent, Version) {
        named(&self.metadata, |identity| {
            let object = Some(Object::Node(translate::node(self)));
            ObjectEvent::Upsert(Box::new(Item { identity, object, notices: Vec::new() }))
        })
    }
}

/// The models of Services and EndpointSlices have an origin.
trait HasOrigin {
    fn origin(&mut self) -> &mut Origin;
}

impl HasOrigin for Service {
    fn origin(&mut self) -> &mut Origin {
        &mut self.origin
    }
}

impl HasOrigin for Slice {
    fn origin(&mut self) -> &mut Origin {
        &mut self.origin
    }
}

#[cfg(test)]
#[path = "tests/decode.rs"]
mod tests;
