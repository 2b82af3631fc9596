//! Queries an apiserver: the Service, its slices, pods and Events, and whether this node exists. The apiserver may
//! refuse each request separately. It lists instead of getting, because `system:node-proxier` may list services but not
//! get one.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Event, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, ObjectList};
use nodelb_core::model::service::ServiceName;
use nodelb_core::text;
use nodelb_kube::api::translate;
use nodelb_kube::apiserver::connection::client;
use nodelb_kube::apiserver::connection::error::LinkError;
use nodelb_kube::apiserver::one_shot::{ANSWER, Connected};
use serde::de::DeserializeOwned;

use crate::diagnose::facts::{Cluster, ClusterAnswer, Denial};
use crate::diagnose::objects::{selector, text};

/// Number of objects per page, and the maximum number of pages.
const PAGE: u32 = 500;
const PAGES: usize = 10;

/// Maximum number of Events that are read.
const EVENTS: u32 = 100;

/// Maximum size of a response in bytes.
const MAX_ANSWER: usize = 32 << 20;

pub(super) async fn ask(connected: &Connected, name: &ServiceName, node: &str) -> Cluster {
    let client = client::over(&connected.link, ANSWER, MAX_ANSWER);
    let namespace = &*name.namespace;
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let nodes: Api<Node> = Api::all(client.clone());
    let all_pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let fields = |fields: &str| ListParams::default().fields(fields);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", name.name));
    let this_node = fields(&format!("metadata.name={node}")).limit(1);
    let about = fields(&format!("involvedObject.kind=Service,involvedObject.name={}", name.name)).limit(EVENTS);
    let (service, slices, events, nodes) = tokio::join!(
        list("list services", &services, fields(&format!("metadata.name={}", name.name))),
        list("list endpointslices.discovery.k8s.io", &slices, of_service),
        page("list events", &events, &about),
        page("list nodes", &nodes, &this_node),
    );
    let (slices, left_out) = match slices {
        Ok(all) => {
            let (left_out, used) = all.into_iter().partition(|slice| translate::left_out(slice).is_some());
            (Ok(used), left_out)
        }
        Err(denial) => (Err(denial), Vec::new()),
    };
    let service: ClusterAnswer<Option<Service>> = service.map(|found| found.into_iter().next());
    let labels = service.as_ref().ok().and_then(|found| selector(found.as_ref()?));
    let pods = match labels {
        Some(labels) => {
            let each: Vec<String> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
            Some(list("list pods", &all_pods, ListParams::default().labels(&each.join(","))).await)
        }
        None => None,
    };
    let others = match &pods {
        Some(Ok(matching)) if matching.is_empty() => {
            let some = page("list pods", &all_pods, &ListParams::default().limit(PAGE)).await;
            some.map_or_else(|_| Vec::new(), |page| page.items)
        }
        _ => Vec::new(),
    };
    let names = if matches!(service, Ok(None)) { names([services, Api::all(client)]).await } else { Vec::new() };
    Cluster {
        via: format!("{} ({})", connected.address, connected.address_source),
        identity: connected.identity.clone(),
        is_balanced: connected.is_balanced,
        failed: connected.failed.iter().map(|(address, why)| format!("{address}: {}", text::sentence(why))).collect(),
        service,
        names,
        slices,
        left_out,
        pods,
        others,
        events: events.map(|page| page.items),
        has_node: nodes.map(|page| !page.items.is_empty()),
    }
}

async fn page<T>(question: &'static str, objects: &Api<T>, parameters: &ListParams) -> ClusterAnswer<ObjectList<T>>
where
    T: Clone + Debug + DeserializeOwned,
{
    objects.list(parameters).await.map_err(|error| {
        let error = LinkError::from(error);
        Denial { question, is_forbidden: matches!(error, LinkError::Forbidden(_)), why: error.to_string() }
    })
}

/// Lists all objects, or as many as a person wants to read about.
async fn list<T>(question: &'static str, objects: &Api<T>, parameters: ListParams) -> ClusterAnswer<Vec<T>>
where
    T: Clone + Debug + DeserializeOwned,
{
    let (mut all, mut parameters) = (Vec::new(), parameters.limit(PAGE));
    for _ in 0..PAGES {
        let page = page(question, objects, &parameters).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => parameters = parameters.continue_token(&next),
            None => return Ok(all),
        }
    }
    let why = format!("there are more than {} of them", all.len());
    Err(Denial { question, why, is_forbidden: false })
}

/// Returns names of other services: some of each list.
async fn names(lists: [Api<Service>; 2]) -> Vec<String> {
    let mut names = Vec::new();
    for services in lists {
        let found = page("list services", &services, &ListParams::default().limit(PAGE)).await;
        let each = found.into_iter().flat_map(|page| page.items).map(|service| service.metadata);
        names.extend(each.map(|of| format!("{}/{}", text(&of.namespace), text(&of.name))));
    }
    names
}
