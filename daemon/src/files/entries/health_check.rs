//! The `[service.health-check]` table of a service entry.

use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;

use nodelb_core::model::health_check::HealthCheck;
use nodelb_kube::api::health_check::{INTERVAL, Kind, Settings, Start, TIMEOUT, without_tcp};
use serde::Deserialize;
use toml::Spanned;

use super::values::{HostName, Limited, Status, UrlPath};
use super::{Entry, PortTable};
use crate::document::Problems;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct HealthCheckTable {
    r#type: Option<Kind>,
    port: Option<NonZeroU16>,
    path: Option<Spanned<UrlPath>>,
    host: Option<Spanned<HostName>>,
    expected_status: Option<Spanned<Status>>,
    interval: Option<Limited<{ INTERVAL.0 }, { INTERVAL.1 }, 1>>,
    timeout: Option<Spanned<Limited<{ TIMEOUT.0 }, { TIMEOUT.1 }, 1>>>,
    rise: Option<Spanned<u32>>,
    fall: Option<Spanned<u32>>,
    start: Option<Start>,
    last_resort: Option<bool>,
}

impl HealthCheckTable {
    /// The table as a health check. `None` if it has no type, which is reported. `at` is the position of the table.
    pub(super) fn check(self, at: &Range<usize>, entry: &Entry<'_>, problems: &mut Problems) -> Option<HealthCheck> {
        if self.r#type.is_none() && !entry.has_refused("health-check.type") {
            entry.problem(at, "health-check has no type; add type = \"tcp\" or type = \"http\"", problems);
        }
        if self.port.is_none() && !entry.has_refused("health-check.port") {
            refuse_unreachable(at, entry, problems);
        }
        let span = |key: &str| match key {
            "path" => self.path.as_ref().map(Spanned::span),
            "host" => self.host.as_ref().map(Spanned::span),
            "expected-status" => self.expected_status.as_ref().map(Spanned::span),
            "timeout" => self.timeout.as_ref().map(Spanned::span),
            "rise" => self.rise.as_ref().map(Spanned::span),
            "fall" => self.fall.as_ref().map(Spanned::span),
            _ => None,
        };
        self.settings().check(|key, message| {
            let at = span(key).unwrap_or_else(|| at.clone());
            entry.problem(&at, &format!("health-check.{key}: {message}"), problems);
        })
    }

    fn settings(&self) -> Settings {
        Settings {
            kind: self.r#type,
            port: self.port,
            path: self.path.as_ref().map(|path| Arc::clone(&path.get_ref().0)),
            host: self.host.as_ref().map(|host| Arc::clone(&host.get_ref().0)),
            expected_status: self.expected_status.as_ref().map(|status| status.get_ref().0.clone()),
            interval: self.interval.map(|Limited(interval)| interval),
            timeout: self.timeout.as_ref().map(|timeout| timeout.get_ref().0),
            rise: self.rise.as_ref().map(|rise| *rise.get_ref()),
            fall: self.fall.as_ref().map(|fall| *fall.get_ref()),
            start: self.start,
            last_resort: self.last_resort,
        }
    }
}

/// Rejects a check that cannot be answered at the backend's own port.
fn refuse_unreachable(at: &Range<usize>, entry: &Entry<'_>, problems: &mut Problems) {
    let problem = |(_, port): &(Range<usize>, PortTable)| {
        without_tcp(&port.name, &port.protocols().into_iter().collect::<Vec<_>>())
    };
    if let Some(problem) = entry.ports.iter().find_map(problem) {
        let message = format!(
            "health-check: {problem}; add port = NUMBER with a port at which each backend accepts TCP connections"
        );
        entry.problem(at, &message, problems);
    }
}

#[cfg(test)]
#[path = "tests/health_check.rs"]
mod tests;
