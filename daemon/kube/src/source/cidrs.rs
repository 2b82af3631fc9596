//! Requests the service CIDRs of the cluster (networking.k8s.io/v1, Kubernetes 1.33) once per session. An address in a
//! service CIDR is never the address of an apiserver. If the server does not know or permit the request, nothing else
//! changes.

use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::{Api, ListParams, ObjectList};

use crate::apiserver::connection::client;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::session::{Apiservers, Report, Session};

/// The maximum size of the response in bytes; a cluster has one or two service CIDRs.
const MAX_BYTES: usize = 1 << 20;

const TIMEOUT: Duration = Duration::from_secs(10);

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
    let client = client::over(&session.link, TIMEOUT, MAX_BYTES);
    Ok(networks(Api::<ServiceCIDR>::all(client).list(&ListParams::default().limit(100)).await?))
}

fn networks(list: ObjectList<ServiceCIDR>) -> Vec<IpNet> {
    let texts = list.items.into_iter().filter_map(|item| item.spec?.cidrs).flatten();
    texts.filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
#[path = "tests/cidrs.rs"]
mod tests;
