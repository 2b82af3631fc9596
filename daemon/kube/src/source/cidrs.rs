//! Requests the service CIDRs of the cluster (networking.k8s.io/v1, Kubernetes 1.33) once per session. An address in a
//! service CIDR is never the address of an apiserver. If the server does not know or permit the request, nothing else
//! changes.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use ipnet::IpNet;
use serde::Deserialize;

use crate::apiserver::error::LinkError;
use crate::apiserver::session::{Apiservers, Report, Session};

const PATH: &str = "/apis/networking.k8s.io/v1/servicecidrs?limit=100";

/// The maximum size of the response in bytes; a cluster has one or two service CIDRs.
const MAX_BYTES: usize = 1 << 20;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default, Deserialize)]
#[serde(default)]
struct List {
    items: Vec<ServiceCidr>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServiceCidr {
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    cidrs: Vec<String>,
}

/// Requests the service CIDRs once per session, as long as there are sessions.
pub(super) async fn follow(mut apiservers: Apiservers) {
    loop {
        let session = apiservers.session.borrow_and_update().clone();
        if let Some(session) = session
            && let Ok(cidrs) = ask(&session).await
            && !cidrs.is_empty()
        {
            _ = apiservers.reports.send(Report::ServiceCidrs(cidrs)).await;
        }
        if apiservers.session.changed().await.is_err() {
            return;
        }
    }
}

async fn ask(session: &Session) -> Result<Vec<IpNet>, LinkError> {
    let body = session.link.get(PATH, TIMEOUT).await?.into_body();
    let read = tokio::time::timeout(TIMEOUT, Limited::new(body, MAX_BYTES).collect()).await;
    let broken = |error: String| LinkError::Broken(error);
    let bytes = read.map_err(|_elapsed| LinkError::TimedOut(PATH.into()))?;
    let bytes = bytes.map_err(|error| broken(error.to_string()))?.to_bytes();
    parse(&bytes).map_err(|error| broken(error.to_string()))
}

fn parse(bytes: &[u8]) -> serde_json::Result<Vec<IpNet>> {
    let list: List = serde_json::from_slice(bytes)?;
    let texts = list.items.into_iter().flat_map(|item| item.spec.cidrs);
    Ok(texts.filter_map(|text| text.parse().ok()).collect())
}

#[cfg(test)]
#[path = "tests/cidrs.rs"]
mod tests;
