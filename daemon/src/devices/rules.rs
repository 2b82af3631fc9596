//! Reads the rules of others in this process if it has CAP_NET_ADMIN, and otherwise through a reaper, which has it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use nodelb_datapath::xtables::LegacyTables;

use super::privileged::{PacketReaper, with_privilege};
use crate::sockets::nf_tables::{self, ForeignRules};
use crate::sockets::reaper::wire::{Order, decode_rules};

pub(crate) type ReadRules =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<ForeignRules>> + Send>> + Send + Sync>;

/// A reader of the rules. Without a reaper, it works only in a process with CAP_NET_ADMIN.
pub(crate) fn reader(reaper: Option<PacketReaper>) -> ReadRules {
    Arc::new(move || {
        let reaper = reaper.clone();
        Box::pin(async move {
            // The reaper does not run as root, and cannot read which tables exist.
            let legacy = LegacyTables::read()?;
            let list = async |reaper: PacketReaper| decode_rules(&reaper.list(&Order::Rules(legacy)).await?);
            with_privilege(move || nf_tables::find(legacy), reaper, list).await
        })
    })
}

/// Reads the rules at the start, with the capabilities that are dropped afterwards.
pub(crate) fn read_here() -> io::Result<ForeignRules> {
    nf_tables::find(LegacyTables::read()?)
}
