//! Backends that a service entry describes by a DNS name: the query that returns them. Pure; `crate::dns` sends it.

use std::fmt;
use std::sync::Arc;

use nodelb_core::model::addr::{Addr, Family, Protocol};
use nodelb_core::model::service::{Backend, ServiceName, SliceName};
use serde::{Deserialize, Serialize};

/// The maximum length of a name in characters, and of one of its labels (RFC 1035).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Stands for the addresses that are not known yet.
pub(super) const UNSPECIFIED: Addr = Addr::UNSPECIFIED_V4;

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
#[derive(Clone, Debug, PartialEq, Eq)]
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

#[cfg(test)]
#[path = "tests/named.rs"]
mod tests;
