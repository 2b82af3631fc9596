//! Handles a request: injects faults, authenticates, authorizes, then serves it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, USER_AGENT};
use hyper::{Method, Response};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::access::User;
use crate::accounts;
use crate::clock::rfc3339;
use crate::cluster::Cluster;
use crate::discovery;
use crate::faults::{Fault, Faults};
use crate::fields::{Operation, Writer};
use crate::list::list;
use crate::protobuf;
use crate::reply::{self, ReplyBody};
use crate::request::{Request, Verb};
use crate::resource::Resource;
use crate::status::Status;
use crate::store::{Key, Object};
use crate::table;
use crate::watch::Watch;
use crate::write::{Part, Patch, State, Write, not_found};

/// The client of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The user that the client certificate names; `None` without a valid one.
    pub(crate) user: Option<User>,
    pub(crate) has_certificate: bool,
}

/// Maximum size of a request body, in bytes: a little more than etcd's limit.
const BODY: usize = 3 << 20;

/// How long a deleted namespace stays in the phase Terminating.
const TERMINATING: Duration = Duration::from_millis(500);

/// Maximum number of watch events that are buffered for a slow client.
const BACKLOG: usize = 64;

/// Handles a request.
pub(crate) async fn answer(
    cluster: Cluster,
    faults: Arc<Faults>,
    peer: Arc<Peer>,
    request: hyper::Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let asked = Request::parse(request.method(), request.uri());
    faults.record(format!("{} {}", request.method(), request.uri().path_and_query().map_or("/", |it| it.as_str())));
    let fault = faults.for_request(&asked);
    if fault == Some(Fault::Stall) {
        std::future::pending::<()>().await;
    }
    if let Some(status) = fault.as_ref().and_then(Fault::status) {
        return Ok(reply::refusal(&status));
    }
    let exchange = Exchange { cluster, faults, fault };
    Ok(exchange.answer(&peer, asked, request).await.unwrap_or_else(|status| reply::refusal(&status)))
}

struct Exchange {
    cluster: Cluster,
    faults: Arc<Faults>,
    fault: Option<Fault>,
}

type Answer = Result<Response<ReplyBody>, Status>;

impl Exchange {
    async fn answer(&self, peer: &Peer, asked: Request, request: hyper::Request<Incoming>) -> Answer {
        let user = self.user(peer, request.headers())?;
        self.cluster.access(|access| access.check(&user, &asked))?;
        let Some(resource) = asked.resource else { return self.about_server(&user, &asked, request).await };
        if !self.faults.behaviour().selects_cluster_ip && asked.parameter("fieldSelector").contains("spec.clusterIP") {
            return Err(Status::new(400, "field label not supported: spec.clusterIP"));
        }
        match asked.verb {
            Verb::Watch => {
                self.faults.note_watch(&user.name);
                self.watch(resource, asked)
            }
            Verb::List => {
                let body = self
                    .cluster
                    .change_without_events(|state| list(&mut state.store, resource, &asked, self.fault.as_ref()));
                Ok(self.render(resource, body?, request.headers()))
            }
            Verb::Get => {
                let object = self.cluster.read(|state| state.find(resource, &key(&asked)))?;
                Ok(self.render(resource, object.bytes.clone(), request.headers()))
            }
            _ => {
                let answer = self.write(resource, &asked, request).await?;
                if accounts::is_relevant(resource) {
                    accounts::settle(&self.cluster)?;
                }
                Ok(answer)
            }
        }
    }

    /// The response to a read: a table if the client prefers one and no fault is to be injected.
    fn render(&self, resource: &Resource, body: Bytes, headers: &HeaderMap) -> Response<ReplyBody> {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if self.fault.is_none()
            && table::is_wanted(accept)
            && let Ok(answer) = serde_json::from_slice(&body)
        {
            return reply::value(200, &table::table(resource, &answer, &rfc3339(SystemTime::now())));
        }
        reply::with_fault(body, self.fault.as_ref())
    }

    /// Returns 401 unless a certificate or a token identifies the user.
    fn user(&self, peer: &Peer, headers: &HeaderMap) -> Result<User, Status> {
        let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer "));
        let by_token = token.and_then(|token| self.cluster.access(|access| access.tokens.get(token.trim()).cloned()));
        let why = match (peer.has_certificate, token) {
            (_, Some(_)) => "invalid bearer token",
            (true, None) => "x509: certificate signed by unknown authority",
            (false, None) => "no credentials",
        };
        // A real apiserver does not give the reason, so as not to help an intruder.
        peer.user.clone().or(by_token).ok_or_else(|| Status::new(401, format!("Unauthorized: {why}")))
    }

    async fn about_server(&self, user: &User, asked: &Request, request: hyper::Request<Incoming>) -> Answer {
        match asked.path.as_str() {
            "/readyz" | "/livez" | "/healthz" => Ok(reply::text(200, "ok")),
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" if *request.method() == Method::POST => {
                let review = parse(&body(request).await?)?;
                Ok(reply::value(201, &self.cluster.access(|access| access.review(user, review))))
            }
            path => Ok(reply::value(200, &discovery::answer(path)?)),
        }
    }

    fn watch(&self, resource: &'static Resource, asked: Request) -> Answer {
        let watch = Watch::new(&self.cluster, &self.faults, resource, asked, self.fault.clone())?;
        let (to, pieces) = mpsc::channel(BACKLOG);
        tokio::spawn(watch.run(to));
        Ok(reply::stream(pieces))
    }

    async fn write(&self, resource: &'static Resource, asked: &Request, request: hyper::Request<Incoming>) -> Answer {
        let part = match asked.subresource.as_deref() {
            None => Part::Main,
            Some("status") if resource.status => Part::Status,
            Some(other) => return Err(not_found(resource, other)),
        };
        if !asked.parameter("dryRun").is_empty() {
            return Err(Status::new(400, "this server does no dry runs"));
        }
        let mut writer = writer(asked, request.headers(), part);
        let kind = patch_kind(asked.verb, request.headers())?;
        let content = parse(&body(request).await?)?;
        if kind == PatchKind::Apply {
            writer.operation = Operation::Apply;
        }
        let now = rfc3339(SystemTime::now());
        let write = Write { resource, part, writer: &writer, now: &now };
        let key = key(asked);
        let (code, object) = self.cluster.change(|state| {
            let done = match (asked.verb, kind) {
                (Verb::Create, _) => return create(state, &write, &key.0, content).map(|object| (201, object)),
                (_, PatchKind::Apply) => return apply(state, &write, &key, content),
                (Verb::Delete, _) => state.delete(&write, &key, &content["preconditions"]),
                (_, PatchKind::Json) => state.patch(&write, &key, &Patch::Json(content)),
                (_, PatchKind::Merge) => state.patch(&write, &key, &Patch::Merge(content)),
                (_, PatchKind::Strategic) => state.patch(&write, &key, &Patch::Strategic(content)),
                (_, PatchKind::None) => state.update(&write, &key, content),
            };
            done.map(|object| (200, object))
        })?;
        if resource.kind == "Namespace" && asked.verb == Verb::Delete {
            self.end_namespace(key);
        }
        Ok(reply::json(code, object.bytes.clone()))
    }

    /// Removes a terminating namespace and its content after a delay, as the namespace controller
    /// does.
    fn end_namespace(&self, key: Key) {
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            tokio::time::sleep(TERMINATING).await;
            // An error: it is already deleted.
            let _ = cluster.delete("namespaces", &key.0, &key.1);
        });
    }
}

/// The format of the body of a PATCH request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchKind {
    /// Not a PATCH request.
    None,
    Json,
    Merge,
    Strategic,
    Apply,
}

fn patch_kind(verb: Verb, headers: &HeaderMap) -> Result<PatchKind, Status> {
    if verb != Verb::Patch {
        return Ok(PatchKind::None);
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default() {
        "application/json-patch+json" => Ok(PatchKind::Json),
        "application/merge-patch+json" => Ok(PatchKind::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchKind::Strategic),
        "application/apply-patch+yaml" => Ok(PatchKind::Apply),
        other => Err(Status::new(415, format!("the body of the request was in an unknown format: {other:?}"))),
    }
}

/// Unlike `Cluster::apply`, a request cannot create its namespace implicitly.
fn create(state: &mut State, write: &Write<'_>, namespace: &str, content: Value) -> Result<Arc<Object>, Status> {
    if let Some(namespaces) = Resource::find("namespaces").filter(|_| write.resource.namespaced) {
        state.find(namespaces, &(String::new(), namespace.to_owned()))?;
    }
    state.create(write, namespace, content)
}

/// Server-side apply without conflict detection and without removal of fields that are no longer
/// applied: creates or merges.
fn apply(state: &mut State, write: &Write<'_>, key: &Key, content: Value) -> Result<(u16, Arc<Object>), Status> {
    if state.store.get(write.resource, key).is_none() {
        return create(state, write, &key.0, content).map(|object| (201, object));
    }
    state.patch(write, key, &Patch::Strategic(content)).map(|object| (200, object))
}

fn writer(asked: &Request, headers: &HeaderMap, part: Part) -> Writer {
    let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
    let first = agent.split(['/', ' ']).next().unwrap_or_default();
    let name = match asked.parameter("fieldManager") {
        "" => first,
        name => name,
    };
    Writer { subresource: (part == Part::Status).then_some("status"), ..Writer::new(name) }
}

/// The key of the object that a request names; the name is empty for a request about a whole
/// collection.
fn key(asked: &Request) -> Key {
    (asked.namespace.clone().unwrap_or_default(), asked.name.clone().unwrap_or_default())
}

async fn body(request: hyper::Request<Incoming>) -> Result<Bytes, Status> {
    let read = Limited::new(request.into_body(), BODY).collect().await;
    read.map(http_body_util::Collected::to_bytes)
        .map_err(|error| Status::new(413, format!("the body cannot be read: {error}")))
}

/// Decodes JSON, YAML (as in server-side apply) or a few protobuf types; an empty body is `null`.
fn parse(body: &Bytes) -> Result<Value, Status> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body)
        .ok()
        .or_else(|| protobuf::decode(body))
        .or_else(|| serde_saphyr::from_str(std::str::from_utf8(body).ok()?).ok())
        .ok_or_else(|| Status::new(400, "the body of the request is neither JSON nor YAML"))
}
