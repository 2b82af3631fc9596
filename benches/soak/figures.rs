//! What one kind of traffic has counted, also as a line that another process prints.

use std::time::Duration;

use nodelb_prober::Tally;

#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    pub(crate) slowest: Duration,
    /// The failures by reason.
    pub(crate) reasons: String,
}

impl Figures {
    pub(crate) fn of(name: &str, tally: &Tally) -> Self {
        let reasons = format!("{:?}, first {:?}", tally.failed, tally.first_failure);
        Self { name: name.into(), ok: tally.ok(), failed: tally.failures(), slowest: tally.slowest, reasons }
    }

    pub(crate) fn line(&self) -> String {
        format!("{}|{}|{}|{}|{}", self.name, self.ok, self.failed, self.slowest.as_micros(), self.reasons)
    }

    pub(crate) fn parse(line: &str) -> Self {
        let fields: [&str; 5] = line.trim_end().splitn(5, '|').collect::<Vec<_>>().try_into().unwrap();
        let [ok, failed, slowest] = [1, 2, 3].map(|field: usize| fields[field].parse().unwrap());
        let slowest = Duration::from_micros(slowest);
        Self { name: fields[0].into(), ok, failed, slowest, reasons: fields[4].into() }
    }
}
