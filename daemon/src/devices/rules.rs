//! Reads kube-proxy's rules in this process if it has CAP_NET_ADMIN, and otherwise through a reaper, which has it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use super::privileged::PacketReaper;
use crate::sockets::nf_tables::{self, KubeProxyRules};
use crate::sockets::reaper::wire::{Order, rules};

/// The answer to a [`ReadRules`], when it is there.
pub(crate) type RulesFuture = Pin<Box<dyn Future<Output = io::Result<KubeProxyRules>> + Send>>;

/// Reads kube-proxy's rules.
pub(crate) type ReadRules = Arc<dyn Fn() -> RulesFuture + Send + Sync>;

/// A reader of the rules. Without a reaper, it works only in a process with CAP_NET_ADMIN.
pub(crate) fn reader(reaper: Option<PacketReaper>) -> ReadRules {
    Arc::new(move || {
        let reaper = reaper.clone();
        Box::pin(async move {
            let here = tokio::task::spawn_blocking(nf_tables::find).await.map_err(io::Error::other)?;
            match (here, reaper) {
                (Err(error), Some(reaper)) if error.kind() == io::ErrorKind::PermissionDenied => read(&reaper).await,
                (here, _) => here,
            }
        })
    })
}

async fn read(reaper: &PacketReaper) -> io::Result<KubeProxyRules> {
    let found = reaper.order(&Order::Rules, None).await?;
    Ok(KubeProxyRules { has_table: found & rules::TABLE != 0, has_chains: found & rules::CHAINS != 0 })
}
