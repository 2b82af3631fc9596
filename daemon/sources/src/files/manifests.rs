//! Kubernetes objects in a file, as `kubectl get services,endpointslices -A -o yaml` prints them: Services,
//! EndpointSlices and lists of them, in any number of documents. Other kinds are skipped and counted. Pure.

mod manifest;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;

use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::text::counted;
use nodelb_kube::api::objects::{EndpointSlice, Metadata, Service};
use nodelb_kube::api::translate::{self, Reader};

use self::manifest::{Kind, Manifest};
use super::content::{FileContent, Found};
use crate::document::Problem;

/// The maximum number of notices and of problems of one file: `kubectl get all` of a large cluster must not fill
/// memory.
const MAX_MESSAGES: usize = 100;

/// The maximum number of documents in one file. Each may use the parser's whole budget for a document.
const MAX_DOCUMENTS: usize = 100_000;

/// The maximum number of frontends and backends that the objects of one file may have. An object has the product of its
/// addresses and its ports, so a small file could otherwise request any amount of memory.
const MAX_ADDRESSES: usize = 4_000_000;

/// Reads a file. `origin` becomes the origin of its objects.
///
/// # Errors
/// The problems of the file: the first deviation from the format of Kubernetes in each document, and every object
/// without a valid name.
pub(super) fn read(text: &str, origin: &Arc<str>) -> Result<FileContent, Vec<Problem>> {
    let mut file = Reading {
        reader: Reader::new(Source::Files, Arc::clone(origin)),
        content: FileContent::default(),
        problems: Vec::new(),
        skipped: BTreeMap::new(),
        more_notices: 0,
        addresses: 0,
    };
    let mut bytes = Cursor::new(text);
    let documents = serde_saphyr::read_with_options::<_, serde_saphyr::Spanned<Manifest>>(&mut bytes, options());
    for (index, document) in documents.enumerate() {
        if index == MAX_DOCUMENTS {
            file.problem(None, format!("more than {MAX_DOCUMENTS} documents; split the file"));
        }
        if file.problems.len() >= MAX_MESSAGES || index == MAX_DOCUMENTS {
            break;
        }
        match document {
            Ok(manifest) => file.take(manifest, Inherited::default()),
            Err(error) => file.syntax_error(&error),
        }
    }
    file.finish()
}

/// The limits of the parser. The largest document that kubectl writes has 6.5 million nodes. Aliases are allowed for
/// hand-written files, but too few of them for an attack by expansion.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        emit_comments: false,
        budget: serde_saphyr::budget! {
            max_events: 10_000_000,
            max_nodes: 7_000_000,
            max_depth: 64,
            flow_nesting_limit: 64,
            max_aliases: 100,
            max_anchors: 100,
            max_recorded_anchor_events: 10_000,
            max_recorded_anchor_bytes: 1 << 20,
            max_merge_keys: 100,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 10_000,
            max_replay_stack_depth: 8,
        },
    }
}

/// The fields that an item inherits from its list if it lacks them: `kubectl get --raw` omits them.
#[derive(Clone, Copy, Default)]
struct Inherited<'a> {
    kind: Option<Kind>,
    api_version: &'a str,
}

struct Reading {
    reader: Reader,
    content: FileContent,
    problems: Vec<Problem>,
    skipped: BTreeMap<String, usize>,
    more_notices: usize,
    /// How many of [`MAX_ADDRESSES`] are used.
    addresses: usize,
}

impl Reading {
    fn take(&mut self, manifest: serde_saphyr::Spanned<Manifest>, inherited: Inherited<'_>) {
        let line = usize::try_from(manifest.referenced.line()).ok().filter(|line| *line > 0);
        let mut manifest = manifest.value;
        if manifest.api_version.is_empty() {
            inherited.api_version.clone_into(&mut manifest.api_version);
        }
        let kind = if manifest.kind.is_empty() { inherited.kind } else { Some(manifest.what()) };
        match kind {
            None => self.problem(line, "an object without a kind; add kind: Service or kind: EndpointSlice"),
            Some(Kind::Service) => self.take_service(line, &manifest.into_service()),
            Some(Kind::EndpointSlice) => self.take_slice(line, &manifest.into_slice()),
            Some(list @ (Kind::List | Kind::ServiceList | Kind::EndpointSliceList)) => {
                let inherited = Inherited { kind: list.of_items(), api_version: &manifest.api_version };
                for item in manifest.items {
                    self.take(item, inherited);
                }
            }
            Some(Kind::Other) => self.skip(manifest.kind),
        }
    }

    fn take_service(&mut self, line: Option<usize>, object: &Service) {
        let Some(name) = self.named(line, "Service", &object.metadata) else { return };
        let spec = &object.spec;
        let addresses = spec.cluster_ips.len() + spec.external_ips.len() + object.status.load_balancer.ingress.len();
        if !self.take_room(line, (addresses + 1) * spec.ports.len()) {
            return;
        }
        let (service, notices) = translate::service(object, &mut self.reader);
        self.content.services.extend(service.map(|service| Found { line, value: Arc::new(service) }));
        self.notices("Service", &name, notices);
    }

    fn take_slice(&mut self, line: Option<usize>, object: &EndpointSlice) {
        let Some(name) = self.named(line, "EndpointSlice", &object.metadata) else { return };
        if !self.take_room(line, object.endpoints.len() * object.ports.len()) {
            return;
        }
        let (slice, notices) = translate::slice(object, &mut self.reader);
        self.content.slices.extend(slice.map(|slice| Found { line, value: Arc::new(slice) }));
        self.notices("EndpointSlice", &name, notices);
    }

    /// Reserves this number of further addresses; adds a problem if there are too many.
    fn take_room(&mut self, line: Option<usize>, addresses: usize) -> bool {
        self.addresses = self.addresses.saturating_add(addresses);
        let has_room = self.addresses <= MAX_ADDRESSES;
        if !has_room {
            self.problem(line, format!("more than {MAX_ADDRESSES} frontends and backends in one file; split it"));
        }
        has_room
    }

    /// The object's full name if it is valid; otherwise adds a problem.
    fn named(&mut self, line: Option<usize>, kind: &str, metadata: &Metadata) -> Option<ServiceName> {
        if metadata.name.is_empty() {
            self.problem(line, format!("{kind} without a name; add metadata.name"));
            return None;
        }
        let full = format!("{}/{}", translate::namespace(metadata), metadata.name);
        let parsed: Result<ServiceName, _> = full.parse();
        if parsed.is_err() {
            self.problem(line, format!("{kind} `{full}` is not named as Kubernetes allows; correct its metadata"));
        }
        parsed.ok()
    }

    fn problem(&mut self, line: Option<usize>, message: impl Into<String>) {
        if self.problems.len() < MAX_MESSAGES {
            self.problems.push(Problem { line, message: message.into() });
        }
    }

    fn syntax_error(&mut self, error: &serde_saphyr::Error) {
        let line = error.location().and_then(|at| usize::try_from(at.line()).ok()).filter(|line| *line > 0);
        let text = error.to_string();
        // The parser's messages end with the position, which the problem contains already.
        let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
        self.problem(line, format!("not readable as a Kubernetes object: {message}"));
    }

    fn notices(&mut self, kind: &str, name: &ServiceName, notices: Vec<String>) {
        for notice in notices {
            if self.content.notices.len() < MAX_MESSAGES {
                self.content.notices.push(format!("{kind} {name}: {notice}"));
            } else {
                self.more_notices += 1;
            }
        }
    }

    fn skip(&mut self, mut kind: String) {
        const MAX_KINDS: usize = 10;
        if self.skipped.len() >= MAX_KINDS && !self.skipped.contains_key(&kind) || kind.len() > 100 {
            kind = "of further kinds".into();
        }
        *self.skipped.entry(kind).or_default() += 1;
    }

    fn finish(mut self) -> Result<FileContent, Vec<Problem>> {
        if !self.problems.is_empty() {
            return Err(self.problems);
        }
        if self.more_notices > 0 {
            self.content.notices.push(counted(self.more_notices, "more notice"));
        }
        if !self.skipped.is_empty() {
            let counts: Vec<_> = self.skipped.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            let total: usize = self.skipped.values().sum();
            let are = if total == 1 { "object of another kind is" } else { "objects of other kinds are" };
            self.content.notices.push(format!("{total} {are} skipped: {}", counts.join(", ")));
        }
        Ok(self.content)
    }
}

#[cfg(test)]
#[path = "tests/manifests.rs"]
mod tests;
