//! The DNS servers in the order in which they are asked. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::DnsName;
use nodelb_core::model::service::ServiceName;
use nodelb_core::text;

use super::server_address::{DnsServer, PORT, ZoneOf};

/// The maximum number of servers of resolv.conf(5) that are used, as in the C library.
const MAX_SYSTEM_SERVERS: usize = 3;
/// The number of names in a row, and that of the services they belong to, that a server must leave without a response to
/// be asked last; fewer if there are fewer. One that leaves only some names, or those of one service, without a response
/// works for the others.
pub(super) const MAX_SILENT: usize = 8;
/// How long a server that did not respond is asked last, in milliseconds.
const LAST_FOR: u64 = 30_000;

/// The servers that the text of resolv.conf(5) names, and the lines that name none; without such lines, this host.
/// `zone_of` is the number of a network interface.
pub(super) fn of_resolv_conf(text: &str, zone_of: ZoneOf<'_>) -> (Vec<SocketAddr>, Vec<String>) {
    let (mut servers, mut problems) = (Vec::new(), Vec::new());
    for (line, text) in (1..).zip(text.lines()) {
        let mut words = text.split_whitespace();
        if words.next() != Some("nameserver") || servers.len() + problems.len() == MAX_SYSTEM_SERVERS {
            continue;
        }
        let word = words.next().unwrap_or_default();
        match DnsServer::of_system(word).ok_or_else(|| "is not an address".into()).and_then(|it| it.resolve(zone_of)) {
            Ok(server) => servers.push(server),
            Err(why) => problems.push(format!("line {line}: `{}` {why}; it is not asked", text::name(word))),
        }
    }
    if servers.is_empty() && problems.is_empty() {
        servers.push(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), PORT));
    }
    (servers, problems)
}

pub(super) type ServicesOf<'a> = Box<dyn Fn(&DnsName) -> BTreeSet<ServiceName> + 'a>;

pub(super) struct Asking<'a> {
    /// Their number, as far as it is below [`MAX_SILENT`].
    pub(super) names: usize,
    /// The number of services that they belong to.
    pub(super) services: usize,
    /// The services that a name belongs to, [`MAX_SILENT`] of them at most; none if it is not asked for.
    pub(super) services_of: ServicesOf<'a>,
}

/// The servers, and which of them did not respond lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Servers {
    servers: Vec<Asked>,
}

#[derive(Clone, Debug)]
struct Asked {
    server: SocketAddr,
    /// Names without a response since the last one, with the services of each.
    silent: BTreeMap<DnsName, BTreeSet<ServiceName>>,
    /// The time of the last of them, if there were enough.
    failed: Option<Moment>,
}

impl Servers {
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Replaces the servers; what is known of those that stay is kept.
    pub(super) fn set(&mut self, servers: &[SocketAddr]) {
        let known = |server: &SocketAddr| self.servers.iter().find(|it| it.server == *server).cloned();
        let new = |server: &SocketAddr| Asked { server: *server, silent: BTreeMap::new(), failed: None };
        self.servers = servers.iter().map(|server| known(server).unwrap_or_else(|| new(server))).collect();
    }

    /// The servers in the order in which they are to be asked: those that did not respond within the last half a minute
    /// come last.
    pub(super) fn in_order(&self, now: Moment) -> Vec<SocketAddr> {
        let is_failed = |it: &&Asked| it.failed.is_some_and(|at| now < at.plus(LAST_FOR));
        let (failed, working): (Vec<&Asked>, Vec<&Asked>) = self.servers.iter().partition(is_failed);
        working.into_iter().chain(failed).map(|it| it.server).collect()
    }

    pub(super) fn note_response(&mut self, server: SocketAddr) {
        if let Some(asked) = self.servers.iter_mut().find(|it| it.server == server) {
            asked.silent.clear();
            asked.failed = None;
        }
    }

    /// Records that the server did not respond to a question about the name.
    pub(super) fn note_silence(&mut self, server: SocketAddr, (name, asking): (&DnsName, &Asking<'_>), now: Moment) {
        let Some(asked) = self.servers.iter_mut().find(|it| it.server == server) else { return };
        asked.silent.retain(|silent, _| !(asking.services_of)(silent).is_empty());
        let services = (asking.services_of)(name);
        let is_new = |service| asked.silent.values().all(|known| !known.contains(service));
        if asked.silent.len() < MAX_SILENT || services.iter().any(is_new) {
            asked.silent.insert(name.clone(), services);
        }
        let services = asked.silent.values().flatten().collect::<BTreeSet<_>>().len();
        if asked.silent.len() >= asking.names.min(MAX_SILENT) && services >= asking.services.min(MAX_SILENT) {
            asked.failed = Some(now);
        }
    }
}

#[cfg(test)]
#[path = "tests/servers.rs"]
mod tests;
