//! What an answer of a DNS server says about a question. Pure: hostile answers end here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record};
use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::model::calendar::utc;
use serde::{Deserialize, Serialize};

use nodelb_core::model::named::{DnsName, Question, RecordType, refusal};

/// The maximum number of aliases (CNAME) between a name and its records.
pub(super) const MAX_ALIASES: usize = 16;
/// The maximum number of records of an answer that are used, an answer of 64 KiB has fewer; and of the addresses of all
/// targets of SRV records together. Each of thousands of targets may be the same host with thousands of addresses.
const MAX_RECORDS: usize = 4_096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Records(Records, Ttl),
    /// The name exists and has no records of the type.
    Empty(Option<Ttl>),
    NoSuchName(Option<Ttl>),
    /// The name is an alias of this one, and the answer does not contain the records of the latter.
    Alias(DnsName, Ttl),
}

/// The time in seconds for which an answer is valid.
pub(super) type Ttl = u32;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Records {
    /// Addresses in order, each once.
    Addresses(Vec<Addr>),
    /// SRV records, in the order of their fields.
    Targets(Vec<Target>),
}

impl Records {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Addresses(addresses) => addresses.len(),
            Self::Targets(targets) => targets.len(),
        }
    }

    /// Whether a connection may be sent to at least one of the addresses. Some servers answer 0.0.0.0 for a name that
    /// they block.
    pub(super) fn is_usable(&self) -> bool {
        match self {
            Self::Addresses(addresses) => addresses.iter().any(|addr| refusal(*addr).is_none()),
            Self::Targets(_) => true,
        }
    }
}

/// An SRV record (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Target {
    /// Only the targets with the lowest priority that has a usable one are backends.
    pub(super) priority: u16,
    /// The share of connections among the targets of one priority.
    pub(super) weight: u16,
    pub(super) port: u16,
    pub(super) name: DnsName,
    /// The host's addresses, if the answer contains any.
    pub(super) addresses: Vec<Addr>,
}

impl Target {
    /// The families of which the answer contains no address of the host. A server may add those of one family only.
    pub(super) fn missing<'f>(&'f self, families: &'f [Family]) -> impl Iterator<Item = Family> + 'f {
        let has = |family: Family| self.addresses.iter().any(|addr| addr.family() == family);
        families.iter().copied().filter(move |family| !has(*family))
    }
}

/// Reads the answer to the question.
///
/// # Errors
/// Why the server has not answered the question, such as `answers SERVFAIL`.
pub(super) fn read(question: &Question, message: &Message) -> Result<Answer, String> {
    let code = message.metadata.response_code;
    if !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
        return Err(format!("answers {}", code_name(code)));
    }
    let (owner, ttl) = follow_aliases(&question.name, message)?;
    if code == ResponseCode::NXDomain {
        return Ok(Answer::NoSuchName(negative_ttl(message).map(|of_soa| of_soa.min(ttl))));
    }
    let records = of_internet(&message.answers).filter(|record| is_of(&record.name, &owner)).take(MAX_RECORDS);
    let (records, shortest) = match question.record {
        RecordType::Srv => targets(message, records),
        kind => addresses(kind, records),
    };
    if records.len() > 0 {
        return Ok(Answer::Records(records, ttl.min(shortest)));
    }
    if owner == question.name {
        return Ok(Answer::Empty(negative_ttl(message)));
    }
    match negative_ttl(message) {
        Some(of_soa) => Ok(Answer::Empty(Some(of_soa.min(ttl)))),
        None => Ok(Answer::Alias(owner, ttl)),
    }
}

/// The name as in RFCs.
fn code_name(code: ResponseCode) -> String {
    match code {
        ResponseCode::ServFail => "SERVFAIL".into(),
        ResponseCode::Refused => "REFUSED".into(),
        ResponseCode::FormErr => "FORMERR".into(),
        ResponseCode::NotImp => "NOTIMP".into(),
        other => format!("with the error code {}", u16::from(other)),
    }
}

fn is_of(name: &Name, owner: &DnsName) -> bool {
    DnsName::of_labels(&name.to_ascii()).is_ok_and(|name| name == *owner)
}

/// The records of the class IN. Those of others are no addresses of hosts.
fn of_internet(records: &[Record]) -> impl Iterator<Item = &Record> {
    records.iter().filter(|record| record.dns_class == DNSClass::IN)
}

/// The name that the aliases of the answer lead to, with the shortest of their TTLs.
fn follow_aliases(name: &DnsName, message: &Message) -> Result<(DnsName, Ttl), String> {
    // Each name is converted once: an answer of 64 KiB may have thousands of aliases.
    let mut aliases: BTreeMap<DnsName, (&Name, Ttl)> = BTreeMap::new();
    for record in of_internet(&message.answers) {
        if let (RData::CNAME(target), Ok(owner)) = (&record.data, DnsName::of_labels(&record.name.to_ascii())) {
            aliases.entry(owner).or_insert((&target.0, valid_ttl(record.ttl)));
        }
    }
    let (mut owner, mut ttl) = (name.clone(), Ttl::MAX);
    for _ in 0..=MAX_ALIASES {
        let Some((target, of_alias)) = aliases.get(&owner) else { return Ok((owner, ttl)) };
        owner = DnsName::of_labels(&target.to_ascii())
            .map_err(|why| format!("answers with an alias (CNAME) to an invalid name: {why}"))?;
        ttl = ttl.min(*of_alias);
    }
    Err(format!("answers with more than {MAX_ALIASES} aliases (CNAME), or with a loop of them"))
}

fn addresses<'m>(kind: RecordType, records: impl Iterator<Item = &'m Record>) -> (Records, Ttl) {
    let of_record = |record: &Record| match (&record.data, kind) {
        (RData::A(a), RecordType::A) => Some((Addr::from(IpAddr::V4(a.0)), valid_ttl(record.ttl))),
        (RData::AAAA(aaaa), RecordType::Aaaa) => Some((Addr::from(IpAddr::V6(aaaa.0)), valid_ttl(record.ttl))),
        _ => None,
    };
    let (addresses, ttls): (BTreeSet<Addr>, Vec<Ttl>) = records.filter_map(of_record).unzip();
    (Records::Addresses(addresses.into_iter().collect()), ttls.into_iter().min().unwrap_or(Ttl::MAX))
}

/// The targets, each with the addresses that the additional section has for it. A server adds them so that no second
/// question is necessary. Targets without addresses are asked for separately.
fn targets<'m>(message: &Message, records: impl Iterator<Item = &'m Record>) -> (Records, Ttl) {
    let mut ttl = Ttl::MAX;
    let mut known: BTreeMap<DnsName, (BTreeSet<Addr>, Ttl)> = BTreeMap::new();
    for record in of_internet(&message.additionals).take(MAX_RECORDS) {
        let addr = match &record.data {
            RData::A(a) => Addr::from(IpAddr::V4(a.0)),
            RData::AAAA(aaaa) => Addr::from(IpAddr::V6(aaaa.0)),
            _ => continue,
        };
        let Ok(name) = DnsName::of_labels(&record.name.to_ascii()) else { continue };
        let (addresses, shortest) = known.entry(name).or_insert((BTreeSet::new(), Ttl::MAX));
        addresses.insert(addr);
        *shortest = (*shortest).min(valid_ttl(record.ttl));
    }
    let mut targets = Vec::new();
    for record in records {
        let RData::SRV(srv) = &record.data else { continue };
        ttl = ttl.min(valid_ttl(record.ttl));
        // The target `.` means that the service is not available; port 0 cannot be connected to.
        let Ok(name) = DnsName::of_labels(&srv.target.to_ascii()) else { continue };
        ttl = known.get(&name).map_or(ttl, |(_, shortest)| ttl.min(*shortest));
        if srv.port > 0 {
            let (priority, weight, port) = (srv.priority, srv.weight, srv.port);
            targets.push(Target { priority, weight, port, name, addresses: Vec::new() });
        }
    }
    targets.sort_unstable();
    targets.dedup();
    let mut room = MAX_RECORDS;
    for target in &mut targets {
        let addresses = known.get(&target.name).into_iter().flat_map(|(addresses, _)| addresses);
        target.addresses = addresses.copied().take(room).collect();
        room -= target.addresses.len();
    }
    (Records::Targets(targets), ttl)
}

/// A TTL with the highest bit counts as 0 (RFC 2181, section 8).
fn valid_ttl(ttl: u32) -> Ttl {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
}

/// The time for which the absence of records is valid (RFC 2308, section 5).
fn negative_ttl(message: &Message) -> Option<Ttl> {
    of_internet(&message.authorities).find_map(|record| match &record.data {
        RData::SOA(soa) => Some(valid_ttl(record.ttl).min(valid_ttl(soa.minimum))),
        _ => None,
    })
}

/// Precedes the end of a hold.
const HELD_UNTIL: &str = "; dns.hold keeps its last addresses until ";

/// The problem of a name that does not exist; `until` is the end of the hold.
pub(super) fn nonexistent(server: &str, until: Option<u64>) -> Arc<str> {
    let until = until.and_then(utc).map(|at| format!("{HELD_UNTIL}{at}"));
    format!("{server} answers that the name does not exist (NXDOMAIN){}", until.unwrap_or_default()).into()
}

/// The text of [`nonexistent`] without the end of the hold.
pub(super) fn without_end(problem: &str) -> &str {
    problem.split_once(HELD_UNTIL).map_or(problem, |(text, _)| text)
}

#[cfg(test)]
#[path = "tests/answer.rs"]
mod tests;
