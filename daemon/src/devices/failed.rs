//! The packet path if it could not be started: what follows from that, and a report that follows the configured mode.
//! The capabilities that loading takes are dropped after the start, so only a restart tries again.

use std::future::Future;
use std::sync::Arc;

use nodelb_datapath::PacketFailure;
use nodelb_host::clock::until;
use nodelb_host::messages;
use tokio::sync::watch;
use tracing::warn;

use super::mode::{Activity, Decision};
use super::report::{DevicesReport, Failure};
use crate::config::{Config, PacketMode};

pub(super) fn start(
    failure: PacketFailure,
    mut config: watch::Receiver<Arc<Config>>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> watch::Receiver<Arc<DevicesReport>> {
    let mode = config.borrow_and_update().packets.mode;
    warn!(message_id = %messages::PACKETS_FAILED, "{}", text(&failure, mode));
    let (published, reports) = watch::channel(Arc::new(report(&failure, mode)));
    let follow = async move {
        while config.changed().await.is_ok() {
            let mode = config.borrow_and_update().packets.mode;
            published.send_replace(Arc::new(report(&failure, mode)));
        }
    };
    tokio::spawn(until(shutdown, follow));
    reports
}

fn report(failure: &PacketFailure, mode: PacketMode) -> DevicesReport {
    let activity = if failure.is_earlier_active { Activity::On } else { Activity::Off };
    let text = text(failure, mode);
    DevicesReport {
        decision: Some(Decision { activity, reason: text.clone() }),
        failure: Some(Failure { text, is_fatal: mode == PacketMode::On && !failure.is_earlier_active }),
        ..DevicesReport::default()
    }
}

fn text(PacketFailure { reason, is_earlier_active }: &PacketFailure, mode: PacketMode) -> String {
    match (mode, is_earlier_active) {
        (PacketMode::Off, _) => {
            format!(
                "packets.mode is \"off\", but its programs cannot be removed: {reason}. Restart nodelb to try again"
            )
        }
        (_, true) => format!(
            "the packet programs cannot be started: {reason}. Those of the earlier start continue to translate \
             connections from outside the node, but not at new devices, and ended connections occupy room. Correct the \
             error and restart nodelb"
        ),
        (_, false) => format!(
            "the packet programs cannot be started: {reason}. New connections from outside the node are not translated. \
             Correct the error and restart nodelb, or set packets.mode to \"off\""
        ),
    }
}

#[cfg(test)]
#[path = "tests/failed.rs"]
mod tests;
