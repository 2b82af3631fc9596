//! One port number in several roles: a NodePort, the port of a backend in the node's network namespace, a port that
//! nodelb listens on. This module derives the protected ports independently, from the sources alone.

use nodelb_core::change::Change;
use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::state::entries::MapState;
use nodelb_core::trace::{Verdict, trace};
use nodelb_programs::sockets::refuses_bind;
use nodelb_report::explain::reports;
use nodelb_report::filter::Filter;
use proptest::prelude::*;

use crate::cases;
use crate::model::Host;
use crate::world::{changes, destinations, facts, guard, host};

/// Whether an endpoint of the service port, in any state, is a process of this node with the number
/// of the NodePort.
fn is_own_backend(host: &Host, (service, port): (&ServiceName, &str), nodeport: L4Addr) -> bool {
    let snapshot = host.engine.snapshot(host.now);
    let Some((_, slices)) = snapshot.facts.owner(service) else { return false };
    let ports = slices.iter().flat_map(|slice| &slice.ports);
    let mut named = ports.filter(|known| &*known.name == port && known.protocol == nodeport.protocol);
    let here = &snapshot.facts.node().addresses;
    named.any(|port| port.backends.iter().any(|known| known.port == nodeport.port && here.contains(&known.addr)))
}

fn is_answered(held: &MapState, family: Family) -> bool {
    held.node_addrs.iter().any(|addr| addr.family() == family)
}

proptest! {
    #![proptest_config(cases(512))]

    /// A NodePort is protected exactly while it is served on some address and no backend on the
    /// node needs it.
    #[test]
    fn a_nodeport_is_kept_free_from_all_but_its_own_backends(changes in changes(32)) {
        let mut host = host();
        host.send_synced();
        for change in facts(&changes) {
            host.send([change]);
            host.settle();
        }
        let (held, range) = (host.held(), guard().nodeport_range);
        let rows = reports::frontends(&host.engine.snapshot(host.now), &Filter::default());
        let nodeports = rows.iter().filter(|row| row.kind == FrontendKind::NodePort && row.address.port == 30_080);
        for row in nodeports.filter(|row| !row.status.is_denied() && row.address.protocol != Protocol::Sctp) {
            // A wildcard IPv6 socket also takes IPv4: only check where one family has the NodePort.
            let other = L4Addr { addr: Addr::UNSPECIFIED_V4, ..row.address };
            if row.address != other && held.frontends.contains_key(&other) {
                continue;
            }
            let is_own = rows.iter().any(|other| {
                other.kind == FrontendKind::NodePort
                    && (&other.service, &other.port) == (&row.service, &row.port)
                    && other.address.addr.family() == row.address.addr.family()
                    && is_own_backend(&host, (&row.service, &row.port), L4Addr { port: other.address.port, ..row.address })
            });
            let is_served = is_answered(&held, row.address.addr.family());
            prop_assert_eq!(refuses_bind(&held, &range, row.address), is_served && !is_own, "{} {:?}", row.address, held);
        }
    }

    /// No service gets the port of nodelb itself, and a connection to the unspecified address never
    /// reaches a NodePort because the nodes of these worlds do not accept NodePorts on loopback.
    #[test]
    fn no_nodeport_takes_a_listener_or_the_unspecified_address(changes in changes(32)) {
        let mut host = host();
        host.send(changes.iter().cloned());
        host.send([Change::Apiservers(Default::default())]);
        host.send_synced();
        host.settle();
        let (held, guard) = (host.held(), guard());
        for (port, _) in &guard.own_ports {
            let own = |address: &L4Addr| address.port == *port && address.protocol == Protocol::Tcp;
            prop_assert!(!held.frontends.keys().any(own), "{:?}", held);
        }
        for to in destinations().into_iter().filter(|to| to.addr.is_unspecified()) {
            prop_assert_eq!(trace(&held, &guard.nodeport_range, to), Verdict::PassedThrough, "{}", to);
        }
    }
}
