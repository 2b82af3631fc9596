//! Where source, memory and kernel say different things, with the likely cause and what nodelb does about it: the rows
//! of `/diff`. Source here is what the sources have told; what they would say if they were asked now is the daemon's to
//! find out.

use std::fmt;

use crate::addr::L4Addr;
use crate::compare::{Content, differing};
use crate::report::{Choice, Filter, Status};
use crate::service::{FrontendKind, ServiceName, Source};
use crate::snapshot::Snapshot;

mod kernel;

/// Which two disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Between {
    /// What a source says, and what nodelb makes of it.
    SourceMemory,
    /// What nodelb wants, and what the maps hold.
    MemoryKernel,
    /// What the maps hold, and what a connection meets.
    KernelConnect,
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl Between {
    /// How they print, in the order of their definition.
    pub const NAMES: [&'static str; 3] = ["source/memory", "memory/kernel", "kernel/connect"];
}

/// A row of `/diff`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which two disagree.
    pub between: Between,
    /// About what: an address, a service port, a hook.
    pub what: String,
    /// Whose it is, if any service's.
    pub service: Option<ServiceName>,
    /// What the source says, where that is one of the two.
    pub source: Option<String>,
    /// What nodelb wants.
    pub memory: Option<String>,
    /// What the maps hold, or a connection met.
    pub kernel: Option<String>,
    /// Why, most likely.
    pub cause: String,
    /// What nodelb does about it, or whoever reads this could.
    pub action: String,
}

/// What whoever does not want to wait for the next check can do.
pub const CHECKS_AT_ONCE: &str = "`systemctl reload nodelb` checks at once";

/// What the rows say of drift hangs on when it is looked for next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextCheck {
    /// In how many seconds; `None` where nobody knows.
    pub seconds: Option<u64>,
}

impl fmt::Display for NextCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seconds {
            Some(seconds) => write!(f, "put right at the next check, in {seconds} s")?,
            None => f.write_str("put right at the next check")?,
        }
        write!(f, "; {CHECKS_AT_ONCE}")
    }
}

const ABSENT: &str = "absent";

impl Snapshot {
    /// Every difference between source and memory, and between memory and what the maps hold now, in this order, by
    /// address and name.
    pub fn differences(&self, held: &Content, next: NextCheck, filter: &Filter) -> Vec<Difference> {
        let mut rows = Vec::new();
        self.add_sources(filter, &mut rows);
        self.add_descriptions(filter, &mut rows);
        self.add_held_ports(filter, &mut rows);
        self.add_frontends(filter, &mut rows);
        self.add_backends(filter, &mut rows);
        for key in differing(held, &self.desired) {
            if self.shows(held, key, filter) {
                rows.push(self.entry(held, key, next));
            }
        }
        let is_wanted = *filter == Filter::default();
        for broken in held.broken.nameless.iter().filter(|_| is_wanted) {
            rows.push(Difference {
                between: Between::MemoryKernel,
                what: "map frontends".into(),
                service: None,
                source: None,
                memory: Some(ABSENT.into()),
                kernel: Some(broken.clone()),
                cause: "another program wrote into the map".into(),
                action: "no connection can meet it; a restart of nodelb makes new maps without it".into(),
            });
        }
        rows
    }

    /// Sources that have not told all they have.
    fn add_sources(&self, filter: &Filter, rows: &mut Vec<Difference>) {
        if *filter != Filter::default() {
            return;
        }
        for source in &self.absent {
            rows.push(Difference {
                between: Between::SourceMemory,
                what: format!("source {source}"),
                service: None,
                source: Some("not configured".into()),
                memory: Some("as last known".into()),
                kernel: None,
                cause: "the configuration does not name it, and it was a source before".into(),
                action: format!(
                    "its services stay; configure [{source}], or set {source}.enabled to false and restart"
                ),
            });
        }
        for source in &self.config.sources {
            let (cause, action) = match (self.facts.is_synced(*source), self.facts.incomplete(*source)) {
                (true, None) => continue,
                (true, Some(what)) => (
                    format!("it cannot be read whole: {what}"),
                    "what the kernel had at the start and no source has described since stays until it can",
                ),
                (false, _) => (
                    format!("it has not told all it has since nodelb started; see {}", where_to_look(*source)),
                    "what the kernel held at the start stays as it was; what is told is added at once",
                ),
            };
            rows.push(Difference {
                between: Between::SourceMemory,
                what: format!("source {source}"),
                service: None,
                source: Some("not told completely".into()),
                memory: Some("what is known so far".into()),
                kernel: None,
                cause,
                action: action.into(),
            });
        }
    }

    /// Services that more than one source describes.
    fn add_descriptions(&self, filter: &Filter, rows: &mut Vec<Difference>) {
        if filter.address.is_some() {
            return;
        }
        let told_twice = |name: &&ServiceName| self.facts.claims(name).len() > 1;
        for name in self.names(filter).into_iter().filter(told_twice) {
            let narrow = Filter { service: Some(name.clone()), ..Filter::default() };
            // The first one counts.
            for report in self.services(&narrow).into_iter().skip(1) {
                let Some(error) = report.error else { continue };
                rows.push(Difference {
                    between: Between::SourceMemory,
                    what: name.to_string(),
                    service: Some(name.clone()),
                    source: Some(format!("{} describes it ({})", report.source, report.origin)),
                    memory: Some("another description counts".into()),
                    kernel: None,
                    cause: error,
                    action: "takes this description when the other is gone".into(),
                });
            }
        }
    }

    fn add_held_ports(&self, filter: &Filter, rows: &mut Vec<Difference>) {
        let mut ports: Vec<_> = self.held().collect();
        ports.sort_by(|a, b| a.key.cmp(&b.key));
        for port in ports {
            let is_named = filter.service.as_ref().is_none_or(|service| port.key.service == *service);
            let is_at = filter.address.is_none_or(|addr| {
                port.backends.iter().any(|backend| backend.addr == addr)
                    || self.addresses_of(&port.key.service).iter().any(|address| address.addr == addr)
            });
            if is_named && is_at {
                rows.push(Difference {
                    between: Between::SourceMemory,
                    what: port.key.to_string(),
                    service: Some(port.key.service.clone()),
                    source: Some("no backends".into()),
                    memory: Some(addresses(port.backends.iter().copied())),
                    kernel: None,
                    cause: format!("{} left it without backends", port.cause),
                    action: "they stay in use, for the service leads to an apiserver, until there are others or it is \
                             deleted"
                        .into(),
                });
            }
        }
    }

    /// Addresses that a source wants served and nodelb does not serve, or nobody can dial.
    fn add_frontends(&self, filter: &Filter, rows: &mut Vec<Difference>) {
        for report in self.frontends(filter) {
            let Some(error) = report.error else { continue };
            let owner = self.rows.get(&report.address).and_then(|row| row.owner());
            let is_owner = owner
                .is_some_and(|(claim, _)| (&claim.key.service, &claim.key.port) == (&report.service, &report.port));
            let (memory, action) = match (report.status, owner) {
                (Status::Error, _) if is_owner => continue,
                (Status::Error, Some((claim, _))) => {
                    (format!("served for {}", claim.key), "takes over when that goes".to_owned())
                }
                (Status::Error, None) => ("not served".into(), "connections pass through untranslated".into()),
                (Status::Done, _) if self.is_out_of_reach(report.address, report.kind) => {
                    ("served, but not everywhere".into(), "goes on as soon as that changes".into())
                }
                _ => continue,
            };
            rows.push(Difference {
                between: Between::SourceMemory,
                what: report.address.to_string(),
                service: Some(report.service.clone()),
                source: Some(format!("{} of {}", report.kind, report.service)),
                memory: Some(memory),
                kernel: None,
                cause: error,
                action,
            });
        }
    }

    /// Backends that a source offers and nodelb does not use for a reason of its own.
    fn add_backends(&self, filter: &Filter, rows: &mut Vec<Difference>) {
        for report in self.backends(filter) {
            let action = match report.choice {
                Choice::Refused => "never used, whatever the source says",
                Choice::Quarantined => "used again when its checks succeed",
                _ => continue,
            };
            let port = if report.port.is_empty() { String::new() } else { format!(":{}", report.port) };
            rows.push(Difference {
                between: Between::SourceMemory,
                what: format!("{}{port} backend {}", report.service, report.address),
                service: Some(report.service),
                source: Some(format!("named by {}", report.origin)),
                memory: Some(report.choice.to_string()),
                kernel: None,
                cause: report.reason.unwrap_or_default(),
                action: action.into(),
            });
        }
    }

    /// Whether a NodePort that is as it should be is answered by somebody else, or nowhere.
    fn is_out_of_reach(&self, address: L4Addr, kind: FrontendKind) -> bool {
        let is_answered = || self.answers_nodeports(address.addr.family());
        self.facts.bound(address).is_some() || (kind == FrontendKind::NodePort && !is_answered())
    }
}

fn where_to_look(source: Source) -> &'static str {
    match source {
        Source::Files => "`nodelb sources`",
        Source::Kubernetes => "`nodelb apiservers`",
    }
}

/// `[192.0.2.1:80/TCP, 192.0.2.2:80/TCP]`, at most five.
fn addresses(backends: impl Iterator<Item = L4Addr>) -> String {
    const SHOWN: usize = 5;
    let all: Vec<L4Addr> = backends.collect();
    let shown: Vec<String> = all.iter().take(SHOWN).map(L4Addr::to_string).collect();
    let more = all.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" + {more} more") } else { String::new() };
    format!("[{}{more}]", shown.join(", "))
}

#[cfg(test)]
mod tests;
