//! Reads kube-proxy's rules in this process if it has CAP_NET_ADMIN, and otherwise through a reaper, which has it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::sockets::nf_tables::{self, KubeProxyRules};
use crate::sockets::reaper::wire::{Order, rules};
use crate::sockets::reaper::{Line, Reaper};

/// The answer to a [`ReadRules`], when it is there.
pub(crate) type RulesFuture = Pin<Box<dyn Future<Output = io::Result<KubeProxyRules>> + Send>>;

/// Reads kube-proxy's rules.
pub(crate) type ReadRules = Arc<dyn Fn() -> RulesFuture + Send + Sync>;

/// The reaper and the connection to it.
struct Privileged {
    reaper: Reaper,
    line: Option<Line>,
}

/// A reader of the rules. Without a reaper, it works only in a process with CAP_NET_ADMIN.
pub(crate) fn reader(reaper: Option<Reaper>) -> ReadRules {
    let privileged = Arc::new(Mutex::new(reaper.map(|reaper| Privileged { reaper, line: None })));
    Arc::new(move || {
        let privileged = Arc::clone(&privileged);
        Box::pin(async move {
            let here = tokio::task::spawn_blocking(nf_tables::find).await.map_err(io::Error::other)?;
            match (here, &mut *privileged.lock().await) {
                (Err(error), Some(privileged)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    privileged.read().await
                }
                (here, _) => here,
            }
        })
    })
}

impl Privileged {
    async fn read(&mut self) -> io::Result<KubeProxyRules> {
        let mut line = match self.line.take() {
            Some(line) => line,
            None => self.reaper.open().await?,
        };
        // After an error, the connection cannot be used any more.
        let outcomes = line.order(&Order::Rules).await?;
        self.line = Some(line);
        let outcome = outcomes.first().copied().ok_or(io::ErrorKind::InvalidData)?;
        match outcome.errno {
            0 => Ok(KubeProxyRules {
                has_table: outcome.destroyed & rules::TABLE != 0,
                has_chains: outcome.destroyed & rules::CHAINS != 0,
            }),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}
