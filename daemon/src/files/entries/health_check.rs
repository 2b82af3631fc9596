//! The `[service.health-check]` table of a service entry.

use std::num::NonZeroU16;
use std::ops::Range;

use nodelb_core::model::addr::Protocol;
use nodelb_core::model::health_check::{HealthCheck, Method};
use nodelb_core::output::durations;
use serde::Deserialize;
use toml::Spanned;

use super::values::{HostName, Limited, Status, UrlPath};
use super::{Entry, PortTable};
use crate::document::Problems;

/// The keys of the table.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct HealthCheckTable {
    r#type: Option<Kind>,
    port: Option<NonZeroU16>,
    path: Option<Spanned<UrlPath>>,
    host: Option<Spanned<HostName>>,
    expected_status: Option<Spanned<Status>>,
    /// From 100 ms to an hour: shorter intervals cause load, longer ones detect nothing in time.
    interval: Option<Limited<100, 3_600_000, 1>>,
    timeout: Option<Spanned<Limited<10, 60_000, 1>>>,
    rise: Option<Spanned<u32>>,
    fall: Option<Spanned<u32>>,
    start: Option<Start>,
    last_resort: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Tcp,
    Http,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Start {
    Healthy,
    Unhealthy,
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
        let default = HealthCheck::default();
        let interval = self.interval.map_or(default.interval, |Limited(interval)| interval);
        let timeout = self.timeout.as_ref().map_or(default.timeout.min(interval), |timeout| timeout.get_ref().0);
        if let Some(written) = self.timeout.as_ref().filter(|_| timeout > interval) {
            let [timeout, interval] = [timeout, interval].map(durations::exact);
            let message = format!(
                "health-check.timeout: {timeout} is longer than the interval of {interval}; a check ends before the next \
                 begins: shorten the timeout"
            );
            entry.problem(&written.span(), &message, problems);
        }
        let mut count = |key, value: &Option<Spanned<u32>>, default| match value {
            Some(value) if !(1..=100).contains(value.get_ref()) => {
                let message = format!("health-check.{key}: {} is not in 1..=100", value.get_ref());
                entry.problem(&value.span(), &message, problems);
                default
            }
            Some(value) => u8::try_from(*value.get_ref()).unwrap_or(default),
            None => default,
        };
        let (rise, fall) = (count("rise", &self.rise, default.rise), count("fall", &self.fall, default.fall));
        let (port, starts_healthy) = (self.port.map(NonZeroU16::get), self.start != Some(Start::Unhealthy));
        let last_resort = self.last_resort.unwrap_or(default.last_resort);
        let method = self.method(entry, problems)?;
        Some(HealthCheck { method, port, interval, timeout, rise, fall, starts_healthy, last_resort })
    }

    fn method(self, entry: &Entry<'_>, problems: &mut Problems) -> Option<Method> {
        let Self { r#type, path, host, expected_status, .. } = self;
        if r#type? == Kind::Http {
            return Some(Method::Http {
                path: path.map_or_else(|| "/".into(), |path| path.into_inner().0),
                host: host.map(|host| host.into_inner().0),
                status: expected_status.map_or(200..=399, |status| status.into_inner().0),
            });
        }
        let http_keys = [
            ("path", path.map(|path| path.span())),
            ("host", host.map(|host| host.span())),
            ("expected-status", expected_status.map(|status| status.span())),
        ];
        for (key, at) in http_keys.into_iter().filter_map(|(key, at)| Some((key, at?))) {
            let message =
                format!("health-check.{key}: has no effect without type = \"http\"; change the type, or remove {key}");
            entry.problem(&at, &message, problems);
        }
        Some(Method::Tcp)
    }
}

/// Rejects a check that cannot be answered: checks use TCP, so the backend's own port does not answer them if the
/// service has no TCP port.
fn refuse_unreachable(at: &Range<usize>, entry: &Entry<'_>, problems: &mut Problems) {
    let is_unreachable = |port: &&PortTable| !port.protocols().is_empty() && !port.protocols().contains(&Protocol::Tcp);
    if let Some(port) = entry.ports.iter().map(|(_, port)| port).find(is_unreachable) {
        let protocol = port.protocols().into_iter().map(|protocol| protocol.to_string()).collect::<Vec<_>>().join("/");
        let named = if port.name.is_empty() { String::new() } else { format!(" of port {}", port.name) };
        let message = format!(
            "health-check: the backends{named} are served over {protocol} only, and a check connects over TCP; add \
             port = NUMBER with a port at which each backend accepts TCP connections"
        );
        entry.problem(at, &message, problems);
    }
}

#[cfg(test)]
#[path = "tests/health_check.rs"]
mod tests;
