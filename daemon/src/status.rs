//! Whether the process does its work, and whether the node's connections get translated: the facts, which the reconcile loop
//! publishes, and the judgement, which `/healthz`, `/readyz` and load balancers are answered by.

use std::net::SocketAddr;

use nodelb_core::model::moment::Moment;

/// A reconcile loop that has not gone round for this long, in milliseconds, is stuck. It goes round at least once a
/// second when idle.
pub const STUCK_AFTER: u64 = 20_000;

/// What the reconcile loop says about itself and the datapath.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// When the loop last went round.
    pub beat: Moment,
    /// Everything that must hold before the node is ready. Empty means that nothing has been checked yet: not ready.
    pub checks: Vec<Check>,
}

/// One condition of readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is checked: `reconcile`, `canary`, `links`.
    pub name: &'static str,
    /// Whether it holds.
    pub passed: bool,
    /// What is known; for a check that failed, why, and what to do.
    pub detail: String,
}

impl Check {
    /// A check that holds.
    pub fn passed(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, passed: true, detail: detail.into() }
    }

    /// A check that does not hold, or not yet.
    pub fn failed(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, passed: false, detail: detail.into() }
    }
}

/// An address of `admin.listen` that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unopened {
    /// The address.
    pub address: SocketAddr,
    /// Why, and what to do.
    pub why: String,
}

impl Unopened {
    /// As a row of `/readyz`. Connections are translated all the same, so it is no reason to be not ready.
    pub fn check(&self) -> Check {
        let Self { address, why } = self;
        Check::passed("listen", format!("{address} of admin.listen is not open: {why}; it is tried again"))
    }
}

impl Health {
    /// Whether the reconcile loop goes round.
    pub fn alive(&self, now: Moment) -> Check {
        let silent = now.0.saturating_sub(self.beat.0);
        if silent > STUCK_AFTER {
            let seconds = silent / 1000;
            let detail = format!(
                "the reconcile loop has not gone round for {seconds} s: changes are not applied (connections keep \
                 going where the kernel maps say); see the journal, then restart nodelb"
            );
            return Check::failed("loop", detail);
        }
        Check::passed("loop", "the reconcile loop goes round")
    }

    /// Everything readiness hangs on, the loop first.
    pub fn ready(&self, now: Moment) -> Vec<Check> {
        let mut checks = vec![self.alive(now)];
        if self.checks.is_empty() {
            checks.push(Check::failed("reconcile", "starting: the first full reconcile has not been done yet"));
        }
        checks.extend(self.checks.iter().cloned());
        checks
    }
}
