//! The definition of a metric, and the only way to publish one: every metric is a row of the table (`super::table`).
//! Owns the format of the exposition, but neither names nor values.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// The type of a metric; as text, its name in OpenMetrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum MetricKind {
    Gauge,
    /// A count since the daemon started. The name ends in `_total`.
    Counter,
    /// The number of values in each bucket.
    Histogram,
    /// Facts in labels, with the value 1. The name ends in `_info`.
    Info,
}

impl MetricKind {
    /// Returns the suffix that a sample's name has in addition to the family's name.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Gauge | Self::Histogram => "",
            Self::Counter => "_total",
            Self::Info => "_info",
        }
    }
}

/// A label, and the bound on its number of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub name: &'static str,
    /// The values, separated by commas, or a description of them with their maximum number.
    pub values: &'static str,
}

/// A metric with these labels, in the order of the values: an array in its definition, so that their number is known.
#[derive(Debug)]
pub struct Metric<L: ?Sized = [Label]> {
    /// The section in the documents, and the condition for the metric to exist.
    pub group: Group,
    /// The name as in queries: with the unit, and `_total` or `_info`. The samples of a histogram have `_bucket`,
    /// `_sum` and `_count` appended.
    pub name: &'static str,
    pub kind: MetricKind,
    /// The meaning: one sentence without a full stop.
    pub help: &'static str,
    pub labels: L,
}

/// The subject of a metric, which also decides when the metric exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Services,
    /// The way of a change to the kernel.
    Changes,
    /// The maps and the programs.
    Kernel,
    Sources,
    Apiservers,
    Dns,
    Checks,
    /// Sockets that have to connect again.
    Sockets,
    Packets,
    Process,
}

impl Group {
    /// Returns the heading, and the condition for the metrics of the group to exist.
    pub const fn title(self) -> (&'static str, &'static str) {
        match self {
            Self::Services => ("Services", "Always present."),
            Self::Changes => ("Changes", "Always present."),
            Self::Kernel => ("Kernel", "Present unless the datapath is memory."),
            Self::Sources => ("Sources", "Always present; those of watched objects only with Kubernetes."),
            Self::Apiservers => ("Apiservers", "Present if Kubernetes is configured."),
            Self::Dns => ("DNS", "Present if a service file has backends with DNS names."),
            Self::Checks => {
                ("Health checks", "Present if a service file or the annotation of a Service configures health checks.")
            }
            Self::Sockets => {
                ("Sockets", "Present if stale sockets are closed: see `datapath.disconnect` in nodelb.toml(5).")
            }
            Self::Packets => ("Packets", "Present unless `packets.mode` is \"off\"."),
            Self::Process => ("Daemon", "Always present."),
        }
    }
}

impl<L: ?Sized> Metric<L> {
    /// Returns the unit, which is part of the name.
    pub fn unit(&self) -> Option<&'static str> {
        let family = self.family();
        ["seconds", "bytes"].into_iter().find(|unit| family.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')))
    }

    /// Returns the name of the family, as in the `# TYPE` line.
    pub fn family(&self) -> &'static str {
        self.name.strip_suffix(self.kind.suffix()).unwrap_or(self.name)
    }
}

/// A value of a gauge or a counter: a whole number, or a measurement in the metric's unit.
pub trait Value: EncodeGaugeValue + EncodeCounterValue + fmt::Debug + Send + Sync + 'static {}

impl<V: EncodeGaugeValue + EncodeCounterValue + fmt::Debug + Send + Sync + 'static> Value for V {}

/// The answer to one scrape while it is built.
#[derive(Debug, Default)]
pub struct Exposition(Registry);

impl Exposition {
    /// Adds the value of a metric without labels.
    pub fn one(&mut self, metric: &'static Metric<[Label; 0]>, value: impl Value) {
        self.optional(metric, Some(value));
    }

    /// Adds the value of a metric without labels, if there is one.
    pub fn optional<V: Value>(&mut self, metric: &'static Metric<[Label; 0]>, value: Option<V>) {
        self.each::<0, &str, V>(metric, value.map(|value| ([], value)));
    }

    /// Adds a value for each set of label values, in the order of the metric's labels. No set may occur twice.
    pub fn each<const LABELS: usize, L: ToString, V: Value>(
        &mut self,
        metric: &'static Metric<[Label; LABELS]>,
        samples: impl IntoIterator<Item = ([L; LABELS], V)>,
    ) {
        let labelled = |values: [L; LABELS]| {
            let mut index = 0;
            values.map(|value| {
                index += 1;
                (metric.labels[index - 1].name, value.to_string())
            })
        };
        let samples = samples.into_iter().map(|(values, value)| (labelled(values), value)).collect();
        self.0.register_collector(Box::new(Family { metric, samples }));
    }

    /// Adds a histogram that another module fills. Clones of it share their values.
    pub fn histogram(&mut self, metric: &'static Metric, histogram: &Histogram) {
        let name = plain_name(metric);
        match unit(metric) {
            Some(unit) => self.0.register_with_unit(name, metric.help, unit, histogram.clone()),
            None => self.0.register(name, metric.help, histogram.clone()),
        }
    }

    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0)?;
        Ok(text)
    }
}

/// Returns the name without the parts that the encoder adds.
fn plain_name(metric: &Metric) -> &'static str {
    let family = metric.family();
    let without = metric.unit().and_then(|unit| family.strip_suffix(unit)).and_then(|rest| rest.strip_suffix('_'));
    without.unwrap_or(family)
}

fn unit(metric: &Metric) -> Option<Unit> {
    metric.unit().map(|unit| if unit == "bytes" { Unit::Bytes } else { Unit::Seconds })
}

#[derive(Debug)]
struct Family<const LABELS: usize, V> {
    metric: &'static Metric,
    samples: Vec<([(&'static str, String); LABELS], V)>,
}

impl<const LABELS: usize, V: Value> Collector for Family<LABELS, V> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if self.samples.is_empty() {
            return Ok(());
        }
        let (help, unit) = (format!("{}.", self.metric.help), unit(self.metric));
        let kind = match self.metric.kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Info => MetricType::Info,
            MetricKind::Gauge | MetricKind::Histogram => MetricType::Gauge,
        };
        let mut encoder = encoder.encode_descriptor(plain_name(self.metric), &help, unit.as_ref(), kind)?;
        for (labels, value) in &self.samples {
            match self.metric.kind {
                MetricKind::Info => encoder.encode_info(labels)?,
                _ if LABELS == 0 => sample(&mut encoder, self.metric.kind, value)?,
                kind => sample(&mut encoder.encode_family(labels)?, kind, value)?,
            }
        }
        Ok(())
    }
}

fn sample(encoder: &mut MetricEncoder<'_>, kind: MetricKind, value: &impl Value) -> Result<(), fmt::Error> {
    match kind {
        MetricKind::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
        MetricKind::Gauge | MetricKind::Histogram | MetricKind::Info => encoder.encode_gauge(value),
    }
}

#[cfg(test)]
#[path = "tests/family.rs"]
mod tests;
