//! The DNS servers in the order in which they are asked. Pure.

use std::net::{IpAddr, SocketAddr};

use nodelb_core::model::moment::Moment;

use crate::config::DnsServer;

/// The maximum number of servers of resolv.conf(5) that are used, as in the C library.
const MAX_SYSTEM_SERVERS: usize = 3;
/// How long a server that did not respond is asked last, in milliseconds.
const LAST_FOR: u64 = 30_000;

/// The servers that the text of resolv.conf(5) names; without any, this host.
pub(super) fn of_resolv_conf(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
        let ip: IpAddr = address.parse().ok()?;
        Some(SocketAddr::new(ip, DnsServer::PORT))
    };
    let mut servers: Vec<SocketAddr> = text.lines().filter_map(server).take(MAX_SYSTEM_SERVERS).collect();
    if servers.is_empty() {
        servers.push(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), DnsServer::PORT));
    }
    servers
}

/// The servers, and which of them did not respond lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Servers {
    servers: Vec<(SocketAddr, Option<Moment>)>,
}

impl Servers {
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Replaces the servers; what is known of those that stay is kept. Returns whether any differs.
    pub(super) fn set(&mut self, servers: &[SocketAddr]) -> bool {
        if self.servers.iter().map(|(server, _)| server).eq(servers) {
            return false;
        }
        let failed = |server: &SocketAddr| self.servers.iter().find(|(it, _)| it == server).and_then(|(_, at)| *at);
        self.servers = servers.iter().map(|server| (*server, failed(server))).collect();
        true
    }

    /// The servers in the order in which they are to be asked: those that did not respond within the last half a minute
    /// come last.
    pub(super) fn in_order(&self, now: Moment) -> Vec<SocketAddr> {
        let is_failed = |at: &Option<Moment>| at.is_some_and(|at| now < at.plus(LAST_FOR));
        let working = self.servers.iter().filter(|(_, at)| !is_failed(at));
        let failed = self.servers.iter().filter(|(_, at)| is_failed(at));
        working.chain(failed).map(|(server, _)| *server).collect()
    }

    /// Records whether the server responded.
    pub(super) fn note(&mut self, server: SocketAddr, has_responded: bool, now: Moment) {
        if let Some((_, at)) = self.servers.iter_mut().find(|(it, _)| *it == server) {
            *at = (!has_responded).then_some(now);
        }
    }
}

#[cfg(test)]
#[path = "tests/servers.rs"]
mod tests;
