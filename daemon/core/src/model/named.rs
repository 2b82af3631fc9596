//! Backends that a service entry describes by a DNS name: the question that returns them, and what is known of the answer.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::addr::{Addr, Family, Protocol};
use super::service::{Backend, ServiceName, SliceName};

/// The maximum length of a name in characters, and of one of its labels (RFC 1035).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Stands for the addresses that are not known yet.
pub const UNSPECIFIED: Addr = Addr::UNSPECIFIED_V4;

/// A DNS name in lower case, without the final dot. It is complete: search domains are not applied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DnsName(Arc<str>);

impl DnsName {
    /// The name that an operator has written.
    pub fn parse(text: &str) -> Result<Self, String> {
        let shown = text.escape_debug();
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.len() == text.len() && !name.contains('.') && !name.is_empty() {
            return Err(format!(
                "`{shown}` is not a complete name, and search domains are not applied; write one like web.example.com \
                 (a name of one label ends in a dot: `{shown}.`)"
            ));
        }
        Self::of_labels(name).map_err(|why| format!("`{shown}` is not a DNS name: {why}"))
    }

    /// The name that a DNS server has sent, with or without the final dot.
    pub fn of_labels(name: &str) -> Result<Self, String> {
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.len() > MAX_NAME {
            return Err(format!("it has more than {MAX_NAME} characters"));
        }
        for label in name.split('.') {
            if label.is_empty() {
                return Err("it has an empty label; remove a dot".into());
            }
            if label.len() > MAX_LABEL {
                return Err(format!("a label has more than {MAX_LABEL} characters"));
            }
            let is_of_names = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            if let Some(other) = label.chars().find(|c| !is_of_names(*c)) {
                let form =
                    if other.is_ascii() { "" } else { "; write such names in ASCII, like xn--bcher-kva.example" };
                let other = other.escape_debug();
                return Err(format!("`{other}` is not a letter, a digit, `-` or `_`{form}"));
            }
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "UPPERCASE")]
#[strum(serialize_all = "UPPERCASE")]
pub enum RecordType {
    A,
    Aaaa,
    /// Targets with port, priority and weight (RFC 2782).
    Srv,
}

impl RecordType {
    /// The type of the records with addresses of this family.
    pub const fn of(family: Family) -> Self {
        match family {
            Family::Ipv4 => Self::A,
            Family::Ipv6 => Self::Aaaa,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Question {
    pub name: DnsName,
    pub record: RecordType,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.record, self.name)
    }
}

/// Backends of a service port that have a DNS name. The answers to its question become one slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub slice: SliceName,
    pub service: ServiceName,
    pub question: Question,
    pub port: Arc<str>,
    pub protocols: Vec<Protocol>,
    /// The families of its frontends: other addresses would not be used.
    pub families: Vec<Family>,
    /// What each backend has in common, with an address that the answer replaces. The answer to an SRV question also
    /// has the port and the weight.
    pub backend: Backend,
}

/// What is known about the backends with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameAnswer {
    /// The last usable records; `None` if there were none, or if they are not used any more.
    pub records: Option<NameRecords>,
    /// Why the records are not current, or why there are none.
    pub problem: Option<Arc<str>>,
    pub state: AnswerState,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerState {
    /// No server has answered since the start.
    #[default]
    Unanswered,
    Answered,
    /// The name has not existed for so long that its records are not used any more. The text is that time in parentheses.
    Ended(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRecords {
    /// The addresses by priority. Only those of the first priority that has a usable one become backends.
    pub priorities: Vec<Vec<NamedAddress>>,
    /// The server of the answer, and the time since which its answer is the same, in seconds since 1970.
    pub server: Arc<str>,
    pub since: u64,
    /// Whether they are those of an earlier run.
    pub is_recalled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedAddress {
    pub addr: Addr,
    /// The port and the weight in an SRV record; those of the service entry otherwise.
    pub srv: Option<(u16, u16)>,
}

/// Why connections must not be sent to an address that a DNS server chose. An operator may list a loopback address in
/// the file.
pub fn refusal(addr: Addr) -> Option<&'static str> {
    if addr.is_unspecified() {
        Some("the unspecified address, which names no host")
    } else if addr.is_multicast() {
        Some("a multicast or broadcast address, which names no single host")
    } else if addr.is_loopback() {
        Some("a loopback address; if it is meant, list it as an address in the file")
    } else if is_reserved(addr) {
        Some("an address of a reserved network (0.0.0.0/8 or 240.0.0.0/4); if it is meant, list it in the file")
    } else if addr.is_link_local() {
        Some("a link-local address; if it is meant, list it as an address in the file")
    } else {
        None
    }
}

/// Whether the address is in a network that is not for hosts (RFC 1122, section 3.2.1.3; RFC 1112, section 4).
fn is_reserved(addr: Addr) -> bool {
    matches!(addr.ip(), IpAddr::V4(ip) if matches!(ip.octets()[0], 0 | 240..))
}

/// The maximum number of backends of a name: as many as an answer about addresses may have.
pub const MAX_BACKENDS: usize = 4_096;

#[cfg(test)]
#[path = "tests/named.rs"]
mod tests;
