//! `/trace`: the path of a connection in sentences, and as columns for programs. The core decides what happens and why
//! ([`nodelb_report::explain::explanation`]); this module owns the wording.

use std::os::unix::fs::MetadataExt;

use axum::http::StatusCode;
use nodelb_core::history::History;
use nodelb_core::holds::says_emptied;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::ipsec::Policies;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::BackendState;
use nodelb_core::packets::admission::Admission;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::status::Status;
use nodelb_core::text::{filled, listed};
use nodelb_datapath::SocketProgram;
use nodelb_report::durations;
use nodelb_report::explain::explanation::{
    self, Candidate, Client, ClientAddress, ConnectResult, Explanation, MatchedFrontend, NearMatch, ViewReason,
};
use nodelb_report::explain::history::last_withdrawal;
use nodelb_report::explain::rows::FrontendReport;
use nodelb_report::rows::{HistoryRow, StepRow, TraceAnswer, TraceBackendRow, VerdictRow};
use nodelb_report::time::Clocks;

use super::query::{Problem, Query, TraceFrom};
use crate::devices::mode::Decision;

pub(super) mod from_maps;
mod outside;
mod phrases;

use phrases::{ELSEWHERE, affinity, backend_count, backends_of, errno, forwarded_to, if_admitted, passed, refused};

impl TraceFrom {
    fn explanation(self, snapshot: &Snapshot, to: L4Addr) -> Result<Explanation, Problem> {
        Ok(match self {
            Self::Client(client) => explanation::explain(snapshot, to, client),
            Self::At(addr, _) if addr.family() != to.addr.family() => {
                let message = format!(
                    "from={addr} is an {} address, and to={to} an {} one: no connection has both",
                    addr.family(),
                    to.addr.family()
                );
                return Err(Problem::new(StatusCode::CONFLICT, message));
            }
            Self::At(addr, port) => explanation::explain_from(snapshot, to, (addr, port)),
            Self::Namespace(inode) => {
                let own = std::fs::metadata("/proc/self/ns/net").map_err(|error| {
                    let message =
                        format!("cannot determine the network namespace of the node: {error}; use host or pod");
                    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
                })?;
                explanation::explain(snapshot, to, if own.ino() == inode { Client::Host } else { Client::Pod })
            }
        })
    }
}

/// What is known of the kernel, apart from the maps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kernel<'a> {
    pub(super) decision: Option<&'a Decision>,
    /// The programs of other software at the socket hooks.
    pub(super) programs: &'a [SocketProgram],
    /// The setting because of which the kernel forwards no packet of clients outside the node.
    pub(super) not_forwarding: Option<&'a str>,
    /// The policies of IPsec that the packet programs follow.
    pub(super) policies: Option<&'a Policies>,
}

pub(super) fn trace(
    snapshot: &Snapshot,
    history: &History,
    Kernel { decision, programs: others, not_forwarding, policies }: Kernel<'_>,
    (query, now): (&Query, Clocks),
) -> Result<TraceAnswer, Problem> {
    let Some(to) = query.to else {
        return Err(Problem::new(StatusCode::BAD_REQUEST, "the destination is missing: to=ADDRESS:PORT"));
    };
    let from = query.from.unwrap_or(TraceFrom::Client(Client::Host));
    let mut explanation = from.explanation(snapshot, to)?;
    let stopped = outside::stop(&mut explanation, snapshot, not_forwarding);
    let protected = policies.and_then(|policies| outside::protect(&mut explanation, snapshot, policies));
    outside::own(&mut explanation, snapshot, decision);
    let is_nodeport = snapshot.desired.node_addrs.contains(&to.addr);
    let (is_found, first) = (explanation.found.is_some(), first_programs(explanation.hooks, others));
    let mut answer = answer(explanation, decision, now.moment);
    if let Some(finding) = stopped {
        insert_before_verdict(&mut answer, "forwarding", finding);
    }
    if let Some(finding) = protected {
        insert_before_verdict(&mut answer, "ipsec", finding);
    }
    if let (Some(finding), Some(hook)) = (first, answer.trace.iter().position(|row| row.step == "hook")) {
        answer.trace.insert(hook, StepRow { step: "programs".into(), finding });
    }
    if !is_found {
        add_former(&mut answer, history, (to, is_nodeport), now);
    }
    Ok(answer)
}

/// The sentence about programs of other software that run before nodelb's at these hooks, if there are any.
fn first_programs(hooks: &[&str], others: &[SocketProgram]) -> Option<String> {
    let first = others.iter().filter(|it| it.is_first && hooks.contains(&it.hook));
    let first = listed(first, 4);
    (!first.is_empty()).then(|| {
        format!(
            "before nodelb, {first}: if other software translates the address, nodelb sees a backend, and what follows \
             does not apply (nodelb diff --probe connects to it)"
        )
    })
}

/// Adds the last service that had the address, if there was one. `is_nodeport`: NodePorts are answered there.
pub(super) fn add_former(answer: &mut TraceAnswer, history: &History, (to, is_nodeport): (L4Addr, bool), now: Clocks) {
    let addresses: &[L4Addr] = if is_nodeport { &[to, to.wildcard()] } else { &[to] };
    let Some(row) = last_withdrawal(history, addresses).map(|record| HistoryRow::from(&**record)) else { return };
    let age = durations::human(row.time.age(now.time));
    let cause = row.removal().map(|cause| format!("; {cause}")).unwrap_or_default();
    let finding = format!("until {age} ago this was {}{cause}", row.service.as_deref().unwrap_or_default());
    insert_before_verdict(answer, "history", finding);
    answer.removed = Some(row);
}

fn insert_before_verdict(answer: &mut TraceAnswer, step: &str, finding: String) {
    let before_verdict = answer.trace.len().saturating_sub(1);
    answer.trace.insert(before_verdict, StepRow { step: step.into(), finding });
}

fn answer(mut explanation: Explanation, decision: Option<&Decision>, now: Moment) -> TraceAnswer {
    let left = outside::leave(&mut explanation, decision);
    let mut steps = steps(&explanation, decision, now);
    steps.push(("verdict", left.unwrap_or_else(|| verdict(&explanation, decision))));
    let trace = steps.into_iter().map(|(step, finding)| StepRow { step: step.into(), finding });
    TraceAnswer {
        verdict: verdict_row(&explanation),
        trace: trace.collect(),
        backends: explanation.backends.iter().map(backend).collect(),
        removed: None,
    }
}

fn verdict_row(explanation: &Explanation) -> VerdictRow {
    let owner = explanation.found.as_ref().and(explanation.claims.first());
    let found = explanation.found.as_ref();
    VerdictRow {
        to: explanation.to.to_string(),
        from: explanation.from.to_string(),
        verdict: explanation.result.to_string(),
        errno: errno(explanation.result),
        service: owner.map(|row| row.service.to_string()),
        port: owner.map(|row| row.port.to_string()).filter(|port| !port.is_empty()),
        frontend: found.map(|found| found.at.to_string()),
        view: found.map(|found| found.view.to_string()),
        backends: backend_count(explanation.result),
        in_kernel: found.map(|found| found.is_in_kernel),
    }
}

fn backend(candidate: &Candidate) -> TraceBackendRow {
    let (row, (own, all)) = (&candidate.row, candidate.share);
    TraceBackendRow {
        address: row.address.to_string(),
        state: Some(row.state),
        choice: row.choice,
        share: (own > 0).then(|| format!("{own} of {all}")),
        node: filled(&row.node),
        zone: filled(&row.zone),
        origin: filled(&row.origin),
        reason: row.reason.clone().or_else(|| candidate.is_elsewhere.then(|| ELSEWHERE.into())),
    }
}

/// Returns the name and the sentence of each step before the verdict, in order of time.
fn steps(explanation: &Explanation, decision: Option<&Decision>, now: Moment) -> Vec<(&'static str, String)> {
    let mut steps = vec![("client", client(explanation))];
    steps.extend(source_ranges(explanation).map(|text| ("source-ranges", text)));
    steps.push(("hook", hook(explanation, decision)));
    match (&explanation.found, explanation.claims.first()) {
        (Some(found), Some(owner)) => {
            steps.push(("frontend", frontend(explanation, found, owner)));
            steps.extend(outside::access(explanation, decision).map(|text| ("outside", text)));
            steps.extend(others(&explanation.claims[1..]));
            steps.push(("view", view(found)));
            steps.push(("affinity", affinity(explanation.from, found.affinity_seconds)));
            steps.push(("backends", backends(explanation, owner)));
            steps.extend(drained(explanation));
            steps.extend(outside::choice(explanation).map(|text| ("choice", text)));
            steps.extend(outside::forward(explanation).map(|text| ("forward", text)));
            steps.extend(clients_own(explanation).map(|text| ("warning", text)));
            steps.push(("status", status(found, owner, now)));
        }
        _ => {
            let to = explanation.to;
            let none = match (&explanation.near[..], explanation.claims.is_empty()) {
                (_, true) => format!("none: no service uses {to}"),
                ([NearMatch::Kept(..)], false) => format!("none: {to} is not served for a service that uses it"),
                (_, false) => format!("none: {to} is not served"),
            };
            steps.push(("frontend", none));
            steps.extend(explanation.claims.iter().map(|row| ("claim", unserved(row))));
            let near = explanation.near.iter();
            steps.extend(near.map(|near| match near {
                NearMatch::Kept(..) => ("kept", self::near(near, explanation.to)),
                _ => ("near", self::near(near, explanation.to)),
            }));
        }
    }
    steps
}

fn client(explanation: &Explanation) -> String {
    let who = match explanation.from {
        Client::Host => "a process in the network namespace of the node",
        Client::Pod => "a process on this node in another network namespace (a pod)",
        Client::Outside => "another host (its packets arrive on a network device)",
    };
    match explanation.client_address {
        None => format!("{who} connects to {}", explanation.to),
        Some(ClientAddress { addr, is_known: true, .. }) => format!("{addr}, {who}, connects to {}", explanation.to),
        Some(ClientAddress { addr, is_known: false, .. }) => format!(
            "{addr}, {who}, connects to {}; nodelb assumes this because {addr} is neither an address of this node nor \
             a backend (for a pod on this node: from=pod)",
            explanation.to
        ),
    }
}

/// Whether the service accepts connections from the client's address, if it restricts its clients.
fn source_ranges(explanation: &Explanation) -> Option<String> {
    let client = match (explanation.client_address, explanation.from) {
        (Some(ClientAddress { addr, .. }), _) => addr.to_string(),
        (None, Client::Host) => "an address of the node".into(),
        (None, Client::Pod | Client::Outside) => "a client of the address's family".into(),
    };
    Some(match explanation.admitted.admission {
        Admission::Range(range) => format!("{range} of loadBalancerSourceRanges admits {client}"),
        Admission::No => format!("no range of loadBalancerSourceRanges admits {client}"),
        Admission::Unknown => phrases::ONLY_SOME.into(),
        // The maps do not restrict the clients.
        Admission::All => {
            let ClientAddress { addr, is_in_source_ranges, .. } = explanation.client_address?;
            match is_in_source_ranges? {
                true => format!("loadBalancerSourceRanges allows {addr}"),
                false => format!("loadBalancerSourceRanges does not allow {addr}: the load balancer must block it"),
            }
        }
    })
}

/// Backends that a client in another network namespace does not reach.
fn clients_own(explanation: &Explanation) -> Option<String> {
    let mut own = explanation.backends.iter().filter(|candidate| candidate.is_clients_own && candidate.share.0 > 0);
    let first = own.next()?.row.address;
    let more = own.count();
    let which = if more > 0 {
        format!("{first} and {more} more are loopback addresses")
    } else {
        format!("{first} is a loopback address")
    };
    Some(format!(
        "{which}: the connection goes there, but ends in the network namespace of the client, not of the node; it \
         fails with ECONNREFUSED unless a process listens there too"
    ))
}

fn hook(explanation: &Explanation, decision: Option<&Decision>) -> String {
    if explanation.hooks.is_empty() {
        return match explanation.from {
            Client::Outside if !outside::is_sctp(explanation) => {
                let why = outside::why_off(decision);
                format!("none: packets of clients outside the node are not translated ({why})")
            }
            _ => format!("none: nodelb has no hook for {}", explanation.to.protocol),
        };
    }
    if explanation.from == Client::Outside {
        return format!("{}, where the packets arrive at the node", explanation.hooks.join(" or "));
    }
    explanation.hooks.join(" or ")
}

fn frontend(explanation: &Explanation, found: &MatchedFrontend, owner: &FrontendReport) -> String {
    let port = if owner.port.is_empty() { String::new() } else { format!(", port {}", owner.port) };
    let described = format!("{} address of {}{port}", owner.kind, owner.service);
    if found.at == explanation.to {
        return format!("{} is a {described}", found.at);
    }
    format!(
        "{} is served on {}, one of the NodePort addresses of the node: a {described}",
        owner.address.port, explanation.to.addr
    )
}

/// A claim to an address that is not served.
fn unserved(row: &FrontendReport) -> String {
    let why = row.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("{} asks for {} as {} and does not get it{why}", row.service, row.address, row.kind)
}

/// Claims that have no effect, each with its reason.
fn others(claims: &[FrontendReport]) -> impl Iterator<Item = (&'static str, String)> {
    claims.iter().map(|row| {
        let why = row.error.as_deref().unwrap_or("it is next in line");
        ("claim", format!("{} claims {} as {}, too: {why}", row.service, row.address, row.kind))
    })
}

fn view(found: &MatchedFrontend) -> String {
    let view = backends_of(found.view);
    let why = match found.why {
        ViewReason::InternalPolicy(policy) => format!("internalTrafficPolicy is {policy}"),
        ViewReason::ExternalPolicy(policy) => format!("externalTrafficPolicy is {policy}"),
        ViewReason::OtherFamily => "IPv4 packets reach IPv6 backends in tunnels".into(),
        ViewReason::ShortCut => "externalTrafficPolicy does not apply to connections from the node itself".into(),
    };
    format!("{view} ({why})")
}

fn backends(explanation: &Explanation, owner: &FrontendReport) -> String {
    let chosen = explanation.backends.iter().filter(|candidate| candidate.share.0 > 0).count();
    match explanation.backends.len() {
        0 => {
            let why = owner.error.as_deref().filter(|_| owner.status == Status::NoBackends);
            format!("none: {}", why.unwrap_or("no EndpointSlice and no file has a backend for this port"))
        }
        known if owner.flags.iter().any(|flag| flag == "LastResort") => {
            format!("{chosen} of {known} usable, as a last resort: all of them have failed their health checks")
        }
        known => format!("{chosen} of {known} usable"),
    }
}

/// The backends that the operator drains, each with the author and the end.
fn drained(explanation: &Explanation) -> impl Iterator<Item = (&'static str, String)> {
    let rows = explanation.backends.iter().map(|candidate| &candidate.row);
    let rows = rows.filter(|row| row.state == BackendState::Maintenance);
    rows.filter_map(|row| Some(("drain", phrases::drained(row.address, row.reason.as_ref()?))))
}

fn status(found: &MatchedFrontend, owner: &FrontendReport, now: Moment) -> String {
    let since = durations::human(now.0.saturating_sub(owner.since.0));
    let kernel = match found.is_in_kernel {
        true => "it is in the kernel (to compare with the maps: nodelb diff)",
        false => "the kernel does not have it as described; the verdict is what happens now",
    };
    let error = owner.error.as_ref().map(|error| format!("; {error}")).unwrap_or_default();
    format!("{} for {since}: {kernel}{error}", owner.status)
}

fn near(near: &NearMatch, to: L4Addr) -> String {
    match near {
        NearMatch::OtherPorts(others) => {
            let shown: Vec<String> = others.iter().take(5).map(ToString::to_string).collect();
            let more = if others.len() > shown.len() { ", and more" } else { "" };
            format!("{} is served at another port or protocol: {}{more}", to.addr, shown.join(", "))
        }
        NearMatch::NotAnsweredOn(service) => format!(
            "{} is a NodePort of {service}, which is not served on {}: see node.nodeport-addresses",
            to.port, to.addr
        ),
        NearMatch::NodesLoopback(service) => {
            format!("{} is a NodePort of {service}; {} is reachable only from the node itself", to.port, to.addr)
        }
        NearMatch::NotInKernel(service, error) => {
            let why = error.as_ref().map_or_else(|| "not yet".into(), |error| format!("because {error}"));
            format!("{} is a NodePort of {service}, which is not served on {}, {why}", to.port, to.addr)
        }
        NearMatch::Kept(_, why) => format!("the kernel serves it as before the start, {why}"),
        NearMatch::NoSuchNodePort => format!("NodePorts are served on {}, but no service has {}", to.addr, to.port),
        NearMatch::Between(before, after) => format!(
            "it lies between {} and {}, which are ClusterIPs: it may belong to a deleted service, or to one that no \
             source has reported",
            before.addr, after.addr
        ),
        NearMatch::Sctp => "SCTP is not translated for sockets on this node".into(),
    }
}

fn verdict(explanation: &Explanation, decision: Option<&Decision>) -> String {
    match (explanation.result, explanation.from) {
        (ConnectResult::Forwarded(_), _) => forwarded(explanation),
        (ConnectResult::Depends(_), from) => if_admitted(&explanation.admitted, &forwarded(explanation), from),
        (ConnectResult::Dropped(reason), _) => outside::dropped(reason),
        (ConnectResult::Refused(_), Client::Outside) => outside::refused(explanation.to, explanation.found.is_some()),
        (ConnectResult::Refused(_), _)
            if explanation.found.as_ref().is_some_and(|it| it.why == ViewReason::OtherFamily) =>
        {
            phrases::OTHER_FAMILY.into()
        }
        (ConnectResult::Refused(errno), _) => refused(errno).into(),
        (ConnectResult::PassedThrough, Client::Outside) => outside::passed(explanation, decision),
        (ConnectResult::PassedThrough, Client::Host | Client::Pod) => match &explanation.found {
            Some(_) => lacking(explanation),
            None => passed(explanation.to),
        },
    }
}

/// What happens at an address that a service has and the kernel has not.
fn lacking(explanation: &Explanation) -> String {
    let error = explanation.claims.first().and_then(|row| row.error.as_deref());
    let why = error.unwrap_or("the kernel does not have the address yet");
    format!("not translated: connects to {} directly: {why}", explanation.to)
}

fn forwarded(explanation: &Explanation) -> String {
    let shares = explanation.backends.iter().map(|candidate| (candidate.row.address, candidate.share.0));
    let held = explanation.claims.first().filter(|row| row.status == Status::Held);
    let is_unconfirmed = |row: &FrontendReport| row.error.as_deref().is_some_and(|error| !says_emptied(error));
    let held = match held {
        Some(row) if is_unconfirmed(row) => "; held: the source cannot tell the current backends",
        Some(_) => "; held: the source removed all backends",
        None => "",
    };
    if let Some(backend) = explanation.outside.and_then(|outside| outside.selected) {
        return format!("forwarded to {backend}{}{held}", outside::unless(explanation));
    }
    if let [NearMatch::Kept(backends, ..)] = &explanation.near[..] {
        return forwarded_to(backends.iter().map(|backend| (*backend, 1)));
    }
    forwarded_to(shares) + held
}

#[cfg(test)]
#[path = "tests/trace.rs"]
mod tests;
