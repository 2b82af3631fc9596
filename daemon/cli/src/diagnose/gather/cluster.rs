//! Queries an apiserver: the Service, its slices, pods and Events, and whether this node exists. The apiserver may
//! refuse each request separately. It lists instead of getting, because `system:node-proxier` may list services but not
//! get one.

use nodelb_core::model::service::ServiceName;
use nodelb_kube::api::decode::Kind;
use nodelb_kube::api::printable;
use nodelb_kube::api::request::{path, question, selector};
use nodelb_kube::api::seen::{Event, Items, Metadata, Node, Pod, Service, Slice};
use nodelb_kube::apiserver::error::LinkError;
use nodelb_kube::apiserver::one_shot::{Connected, ask as ask_once};
use serde::de::DeserializeOwned;

use crate::diagnose::facts::{Answer, Cluster, Denial};

/// Number of objects per page, and the maximum number of pages.
const PAGE: &str = "500";
const PAGES: usize = 10;

/// Maximum number of Events that are read.
const EVENTS: &str = "100";

/// An object of which only the name is read.
#[derive(Debug, serde::Deserialize)]
struct Named {
    metadata: Metadata,
}

pub(super) async fn ask(connected: &Connected, name: &ServiceName, node: &str) -> Cluster {
    let core = format!("/api/v1/namespaces/{}", name.namespace);
    let [services, slices] = Kind::SERVED.map(|kind| path(kind, Some(&name.namespace)));
    let [by_name, of_service] = Kind::SERVED.map(|kind| selector(kind, name));
    let about = format!("involvedObject.kind=Service,involvedObject.name={}", name.name);
    let of_node = format!("metadata.name={node}");
    let asked = Asked { connected };
    let events = format!("{core}/events");
    let (service, slices, events, nodes) = tokio::join!(
        asked.list::<Service>("list services", &services, vec![(by_name.0, &by_name.1)]),
        asked.list::<Slice>("list endpointslices.discovery.k8s.io", &slices, vec![(of_service.0, &of_service.1)]),
        asked.page::<Event>("list events", &events, vec![("fieldSelector", &about), ("limit", EVENTS)]),
        asked.page::<Node>("list nodes", Kind::Node.path(), vec![("fieldSelector", &of_node), ("limit", "1")]),
    );
    let slices = slices.map(|mut slices| {
        slices.retain(Slice::is_for_proxies);
        slices
    });
    let service: Answer<Option<Service>> = service.map(|found| found.into_iter().next());
    let found = service.as_ref().ok().and_then(Option::as_ref);
    let pods = match found {
        Some(service) if !service.spec.selector.is_empty() => Some(asked.pods(&core, service).await),
        _ => None,
    };
    let others = match &pods {
        Some(Ok(matching)) if matching.is_empty() => asked
            .page("list pods", &format!("{core}/pods"), vec![("limit", PAGE)])
            .await
            .map_or_else(|_| Vec::new(), |page| page.items),
        _ => Vec::new(),
    };
    let names = if matches!(service, Ok(None)) { asked.names(name).await } else { Vec::new() };
    Cluster {
        via: format!("{} ({})", connected.address, connected.address_source),
        identity: connected.identity.clone(),
        is_balanced: connected.is_balanced,
        failed: connected
            .failed
            .iter()
            .map(|(address, why)| format!("{address}: {}", printable::sentence(why)))
            .collect(),
        service,
        names,
        slices,
        pods,
        others,
        events: events.map(|page| page.items),
        has_node: nodes.map(|page| !page.items.is_empty()),
    }
}

struct Asked<'v> {
    connected: &'v Connected,
}

impl Asked<'_> {
    async fn page<T: DeserializeOwned>(
        &self,
        question_text: &'static str,
        path: &str,
        parameters: Vec<(&str, &str)>,
    ) -> Answer<Items<T>> {
        let answer = ask_once(&self.connected.link, &question(path, &parameters)).await;
        answer.map_err(|error| Denial {
            question: question_text,
            is_forbidden: matches!(error, LinkError::Forbidden(_)),
            why: error.to_string(),
        })
    }

    /// Lists all objects, or as many as a person wants to read about.
    async fn list<T: DeserializeOwned>(
        &self,
        question_text: &'static str,
        path: &str,
        parameters: Vec<(&str, &str)>,
    ) -> Answer<Vec<T>> {
        let (mut all, mut next) = (Vec::new(), String::new());
        for _ in 0..PAGES {
            let mut parameters = parameters.clone();
            parameters.push(("limit", PAGE));
            if !next.is_empty() {
                parameters.push(("continue", &next));
            }
            let page: Items<T> = self.page(question_text, path, parameters).await?;
            all.extend(page.items);
            next = page.metadata.next;
            if next.is_empty() {
                return Ok(all);
            }
        }
        let why = format!("there are more than {} of them", all.len());
        Err(Denial { question: question_text, why, is_forbidden: false })
    }

    async fn pods(&self, core: &str, service: &Service) -> Answer<Vec<Pod>> {
        let each: Vec<String> = service.spec.selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
        self.list("list pods", &format!("{core}/pods"), vec![("labelSelector", &each.join(","))]).await
    }

    /// Returns names of other services, in this namespace and in others.
    async fn names(&self, name: &ServiceName) -> Vec<String> {
        let everywhere = self.page::<Named>("list services", Kind::Service.path(), vec![("limit", PAGE)]).await;
        let here = path(Kind::Service, Some(&name.namespace));
        let here = self.page::<Named>("list services", &here, vec![("limit", PAGE)]).await;
        let pages = [here, everywhere].into_iter().filter_map(Result::ok).flat_map(|page| page.items);
        pages.map(|named| format!("{}/{}", named.metadata.namespace, named.metadata.name)).collect()
    }
}
